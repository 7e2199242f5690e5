#include "src/data/augment.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/error.h"
#include "src/data/pixel_operations.h"

namespace annulus {
namespace {

constexpr std::uint64_t kFlips = 2;  // separates alternating flips from other random numbers

double at_random(Draws& draws, std::size_t outer, double inner) {
  return draws.between(0, static_cast<double>(outer) - inner);
}

// Returns which pixel in a row or column is seen at `position`.
std::size_t reflected(std::ptrdiff_t position, std::size_t size) {
  const auto last = static_cast<std::ptrdiff_t>(size) - 1;
  return static_cast<std::size_t>(last - std::abs(last - std::abs(position)));
}

}  // namespace

Augmentation parse_augmentation(const std::string& name) {
  if (name == "none") return {};
  if (name == "flip") return {.flip = true};
  if (name == "crop-flip") return {.crop = Crop::shifted, .flip = true};
  if (name == "imagenet") return {.crop = Crop::resized, .flip = true};
  if (name == "imagenet-jitter") return {.crop = Crop::resized, .flip = true, .jitter = true};
  fail("--augment {}: unknown; choose one of: none, flip, crop-flip, imagenet, imagenet-jitter", name);
}

Window centre_crop(const ImageSize& image, const ImageSize& to, double margin) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const double scale =
      std::min(height / static_cast<double>(to.height), width / static_cast<double>(to.width)) / margin;
  const double crop_height = scale * static_cast<double>(to.height), crop_width = scale * static_cast<double>(to.width);
  return {(height - crop_height) / 2, (width - crop_width) / 2, crop_height, crop_width};
}

Window shifted_crop(Draws& draws, const ImageSize& image, const ImageSize& to, double margin) {
  Window window = centre_crop(image, to, margin);
  window.top = at_random(draws, image.height, window.height);
  window.left = at_random(draws, image.width, window.width);
  return window;
}

Window random_resized_crop(Draws& draws, const ImageSize& image) {
  constexpr double kNarrowest = 3.0 / 4, kWidest = 4.0 / 3;
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = height * width * draws.between(0.08, 1);
    const double shape = std::exp(draws.between(std::log(kNarrowest), std::log(kWidest)));
    const double w = std::round(std::sqrt(area * shape)), h = std::round(std::sqrt(area / shape));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto top = draws.below(image.height - static_cast<std::size_t>(h) + 1);
    const auto left = draws.below(image.width - static_cast<std::size_t>(w) + 1);
    return {static_cast<double>(top), static_cast<double>(left), h, w};
  }
  const double w = std::min(width, std::round(height * kWidest)), h = std::min(height, std::round(width / kNarrowest));
  return {std::floor((height - h) / 2), std::floor((width - w) / 2), h, w};
}

Shift draw_shift(Draws& draws, std::size_t most) {
  const auto draw = [&] {
    return static_cast<std::ptrdiff_t>(draws.below(2 * most + 1)) - static_cast<std::ptrdiff_t>(most);
  };
  const std::ptrdiff_t down = draw(), right = draw();
  return {down, right};
}

void shift_with_black(const Shift& shift, std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels) {
  const auto [down, right] = shift;
  // Moves all pixels at once; pixels that wrapped around into the next row are then made black.
  const auto move = (down * static_cast<std::ptrdiff_t>(size.width) + right) * static_cast<std::ptrdiff_t>(channels);
  move > 0 ? std::shift_right(pixels.begin(), pixels.end(), move)
           : std::shift_left(pixels.begin(), pixels.end(), -move);
  const std::size_t row_bytes = size.width * channels;
  for (std::size_t y = 0; y < size.height; ++y) {
    const auto row = pixels.subspan(y * row_bytes, row_bytes);
    const auto source = static_cast<std::ptrdiff_t>(y) - down;
    const bool outside = source < 0 || source >= static_cast<std::ptrdiff_t>(size.height);
    const std::size_t black =
        outside ? row_bytes : std::min(row_bytes, static_cast<std::size_t>(std::abs(right)) * channels);
    std::ranges::fill(right > 0 || outside ? row.first(black) : row.last(black), std::uint8_t{0});
  }
}

void shift_with_reflection(std::ptrdiff_t down, std::ptrdiff_t right, std::span<std::uint8_t> pixels,
                           const ImageSize& size, std::size_t channels, std::vector<std::uint8_t>& scratch) {
  scratch.assign(pixels.begin(), pixels.end());
  const std::size_t row_bytes = size.width * channels;
  // The columns that are seen within the image.
  const auto width = static_cast<std::ptrdiff_t>(size.width);
  const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(right, 0), end = std::min(width, width + right);
  for (std::size_t y = 0; y < size.height; ++y) {
    std::uint8_t* const to = pixels.data() + y * row_bytes;
    const std::uint8_t* const row =
        scratch.data() + reflected(static_cast<std::ptrdiff_t>(y) - down, size.height) * row_bytes;
    const auto copy_column = [&](std::ptrdiff_t x) {
      std::copy_n(row + reflected(x - right, size.width) * channels, channels,
                  to + static_cast<std::size_t>(x) * channels);
    };
    for (std::ptrdiff_t x = 0; x < begin; ++x) copy_column(x);
    std::copy_n(row + static_cast<std::size_t>(begin - right) * channels,
                static_cast<std::size_t>(end - begin) * channels, to + static_cast<std::size_t>(begin) * channels);
    for (std::ptrdiff_t x = end; x < width; ++x) copy_column(x);
  }
}

bool flips_in(std::uint64_t epoch, std::uint64_t seed, std::size_t sample) {
  return ((mix(seed, kFlips, sample) + epoch) & 1) != 0;
}

void flip_left_to_right(std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels) {
  for (std::size_t y = 0; y < size.height; ++y) {
    std::uint8_t* left = pixels.data() + y * size.width * channels;
    std::uint8_t* right = left + (size.width - 1) * channels;
    for (; left < right; left += channels, right -= channels) std::swap_ranges(left, left + channels, right);
  }
}

void jitter_colours(Draws& draws, std::span<std::uint8_t> pixels, std::size_t channels) {
  enum { brightness, contrast, saturation };
  std::array<int, 3> order{brightness, contrast, saturation};
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draws.below(i)]);
  for (const int what : order) {
    const std::int32_t factor = fixed_point(draws.between(0.6, 1.4));
    if (what == brightness) adjust_brightness(pixels, factor);
    if (what == contrast) adjust_contrast(pixels, channels, factor);
    if (what == saturation && channels == 3) adjust_saturation(pixels, factor);
  }
}

void erase_randomly(Draws& draws, std::span<std::uint8_t> pixels, const ImageSize& size,
                    std::span<const std::uint8_t> colour) {
  constexpr double kSmallest = 0.02, kLargest = 0.33, kNarrowest = 0.3;
  constexpr int kTries = 10;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const double area = draws.between(kSmallest, kLargest) * static_cast<double>(size.height * size.width);
    const double ratio = std::exp(draws.between(std::log(kNarrowest), -std::log(kNarrowest)));
    const auto height = static_cast<std::size_t>(std::lround(std::sqrt(area * ratio)));
    const auto width = static_cast<std::size_t>(std::lround(std::sqrt(area / ratio)));
    if (height >= size.height || width >= size.width) continue;
    const std::size_t top = draws.below(size.height - height + 1), left = draws.below(size.width - width + 1);
    for (std::size_t y = top; y < top + height; ++y)
      for (std::size_t x = left; x < left + width; ++x)
        std::ranges::copy(colour, pixels.begin() + static_cast<std::ptrdiff_t>((y * size.width + x) * colour.size()));
    return;
  }
}

}  // namespace annulus
