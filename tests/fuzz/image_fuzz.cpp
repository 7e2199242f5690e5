#include "kernels/base/error.h"
#include "src/data/augment.h"
#include "src/data/image_codec.h"
#include "src/data/resize.h"

using namespace annulus;

namespace {

constexpr std::size_t kMostToDecode = 1 << 20;  // pixels: slow inputs find little

void prepare(std::span<const std::uint8_t> bytes, std::size_t channels, std::uint64_t key) {
  static Image image;
  static Resizer resizer;
  static std::vector<std::uint8_t> pixels;
  constexpr ImageSize kWanted{20, 30};
  const ImageSize size = image_size(bytes);
  if (size.height * size.width > kMostToDecode) return;
  Draws draws(key);
  const Window crop = random_resized_crop(draws, size);
  const Window found = decode_crop(bytes, channels, crop, kWanted, image);
  pixels.resize(kWanted.height * kWanted.width * channels);
  resizer.resize(image, found, kWanted, pixels);
  shift_with_black(draw_shift(draws, 4), pixels, kWanted, channels);
  flip_left_to_right(pixels, kWanted, channels);
  jitter_colours(draws, pixels, channels);
  decode(bytes, channels, image);
  if (image.pixels.size() != size.height * size.width * channels) __builtin_trap();
}

}  // namespace

// The first byte selects the number of channels and the random augmentation.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    prepare({data + 1, size - 1}, data[0] % 2 == 0 ? 3 : 1, data[0]);
  } catch (const Error&) {
  }
  return 0;
}
