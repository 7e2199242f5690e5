#include "src/import/image_converter.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "src/data/augment.h"
#include "src/data/image_codec.h"

namespace annulus {
namespace {

template <std::size_t channels>
void add_to(PixelSums& to, std::span<const std::uint8_t> pixels) {
  to.count += pixels.size() / channels;
  for (std::size_t i = 0; i < pixels.size(); i += channels) {
    for (std::size_t channel = 0; channel < channels; ++channel) {
      const std::uint64_t value = pixels[i + channel];
      to.sums[channel] += value;
      to.squares[channel] += value * value;
    }
  }
}

}  // namespace

void PixelSums::add(std::span<const std::uint8_t> pixels, std::size_t channels) {
  if (channels == 1)
    add_to<1>(*this, pixels);
  else
    add_to<3>(*this, pixels);
}

void PixelSums::add(const PixelSums& other) {
  count += other.count;
  for (std::size_t channel = 0; channel < kMostChannels; ++channel) {
    sums[channel] += other.sums[channel];
    squares[channel] += other.squares[channel];
  }
}

void SizeRange::add(const ImageSize& size) {
  add(SizeRange{size, size});
}

void SizeRange::add(const SizeRange& other) {
  smallest = {std::min(smallest.height, other.smallest.height), std::min(smallest.width, other.smallest.width)};
  largest = {std::max(largest.height, other.largest.height), std::max(largest.width, other.largest.width)};
}

std::span<const std::uint8_t> ImageConverter::convert(std::span<const std::uint8_t> bytes) {
  if (bytes.empty()) fail("empty");
  decode(bytes, storage_.channels, image_);
  if (storage_.size && image_.size != *storage_.size) fit();
  statistics_.pixels.add(image_.pixels, image_.channels);
  statistics_.sizes.add(image_.size);
  return storage_.encoded ? bytes : image_.pixels;
}

void ImageConverter::fit() {
  fitted_.reshape(*storage_.size, image_.channels);
  resizer_.resize(image_, centre_crop(image_.size, *storage_.size, 1), *storage_.size, fitted_.pixels);
  std::swap(image_, fitted_);
}

}  // namespace annulus
