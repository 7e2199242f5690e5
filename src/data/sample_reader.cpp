#include "src/data/sample_reader.h"

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "src/data/image_codec.h"

namespace annulus {

ReadTimes& ReadTimes::operator+=(const ReadTimes& other) {
  reading += other.reading;
  decoding += other.decoding;
  resizing += other.resizing;
  augmenting += other.augmenting;
  samples += other.samples;
  bytes += other.bytes;
  return *this;
}

ReadTimes ReadTimes::operator-(const ReadTimes& other) const {
  return {reading - other.reading,       decoding - other.decoding, resizing - other.resizing,
          augmenting - other.augmenting, samples - other.samples,   bytes - other.bytes};
}

std::int32_t SampleReader::read(std::size_t sample, std::uint64_t key, std::span<std::uint8_t> pixels) {
  last_ = now_seconds();
  Draws draws(key);
  const std::int32_t label = dataset_.label(sample);
  dataset_.info().encoded() ? read_encoded(sample, draws, pixels) : read_decoded(sample, draws, pixels);
  augment(draws, pixels);
  add_time(times_.augmenting);
  ++times_.samples;
  return label;
}

bool SampleReader::read_together(std::span<const std::size_t> samples, std::span<const std::uint64_t> keys,
                                 std::span<std::uint8_t> pixels, std::span<std::int32_t> labels) {
  const DatasetInfo& info = dataset_.info();
  if (!plan_.takes_as_stored({info.height, info.width})) return false;
  last_ = now_seconds();
  const bool copied = dataset_.copy(samples, pixels, labels);
  add_time(times_.reading);
  if (!copied) return false;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    Draws draws(keys[i]);
    augment(draws, pixels.subspan(i * plan_.image_bytes(), plan_.image_bytes()));
  }
  add_time(times_.augmenting);
  times_.samples += samples.size();
  times_.bytes += pixels.size();
  return true;
}

void SampleReader::read_encoded(std::size_t sample, Draws& draws, std::span<std::uint8_t> pixels) {
  dataset_.read_encoded(sample, bytes_);
  times_.bytes += bytes_.size();
  add_time(times_.reading);
  Window window;
  try {
    window = decode_crop(bytes_, plan_.channels, crop(draws, image_size(bytes_)), plan_.image, image_);
  } catch (const Error& error) {
    fail("{}: {}", dataset_.place(sample), error.what());
  }
  add_time(times_.decoding);
  resizer_.resize(image_, window, plan_.image, pixels);
  add_time(times_.resizing);
}

void SampleReader::read_decoded(std::size_t sample, Draws& draws, std::span<std::uint8_t> pixels) {
  const DatasetInfo& info = dataset_.info();
  const ImageSize stored{info.height, info.width};
  const bool as_it_is = plan_.takes_as_stored(stored);
  if (!as_it_is) image_.reshape(stored, info.channels);
  dataset_.read_image(sample, as_it_is ? pixels : std::span(image_.pixels));
  times_.bytes += info.image_bytes();
  add_time(times_.reading);
  if (as_it_is) return;
  resizer_.resize(image_, crop(draws, stored), plan_.image, pixels);
  add_time(times_.resizing);
}

Window SampleReader::crop(Draws& draws, const ImageSize& image) const {
  switch (plan_.augmentation.crop) {
    case Crop::resized:
      return random_resized_crop(draws, image);
    case Crop::shifted:
      return shifted_crop(draws, image, plan_.image, plan_.margin);
    case Crop::centre:
      break;
  }
  return centre_crop(image, plan_.image, plan_.margin);
}

void SampleReader::augment(Draws& draws, std::span<std::uint8_t> pixels) {
  const Augmentation& augmentation = plan_.augmentation;
  // Without a margin there is no room to shift the crop.
  if (augmentation.crop == Crop::shifted && plan_.margin == 1)
    shift_randomly(draws, pixels, plan_.image, plan_.channels);
  if (augmentation.flip && draws.below(2) == 1) flip_left_to_right(pixels, plan_.image, plan_.channels);
  if (augmentation.jitter) jitter_colours(draws, pixels, plan_.channels);
}

void SampleReader::add_time(double& part) {
  const double now = now_seconds();
  part += now - last_;
  last_ = now;
}

}  // namespace annulus
