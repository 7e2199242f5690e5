#include "src/data/pixel_operations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

namespace annulus {
namespace {

constexpr std::size_t kValues = 256;

std::uint8_t to_pixel(std::int32_t fixed_point) {
  return static_cast<std::uint8_t>(std::clamp((fixed_point + kFactorOne / 2) >> kFactorBits, 0, 255));
}

std::int32_t gray(const std::uint8_t* pixel, std::size_t channels) {
  return channels == 1 ? pixel[0] : (77 * pixel[0] + 150 * pixel[1] + 29 * pixel[2] + 128) >> 8;
}

// Scales each pixel's distance from `centre`.
void scale(std::span<std::uint8_t> pixels, std::int32_t factor, std::int32_t centre) {
  const std::int32_t offset = (kFactorOne - factor) * centre;
  for (std::uint8_t& pixel : pixels) pixel = to_pixel(factor * pixel + offset);
}

std::int32_t mean_gray(std::span<const std::uint8_t> pixels, std::size_t channels) {
  const auto count = static_cast<std::int64_t>(pixels.size() / channels);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < pixels.size(); i += channels) sum += gray(pixels.data() + i, channels);
  return static_cast<std::int32_t>((sum + count / 2) / count);
}

using Histogram = std::array<std::size_t, kValues>;
using Table = std::array<std::uint8_t, kValues>;  // new values by old value

// Replaces each channel's values by the table that `table_of` makes from the channel's histogram.
template <class TableOf>
void look_up(std::span<std::uint8_t> pixels, std::size_t channels, const TableOf& table_of) {
  for (std::size_t channel = 0; channel < channels; ++channel) {
    Histogram histogram{};
    for (std::size_t i = channel; i < pixels.size(); i += channels) ++histogram[pixels[i]];
    const Table table = table_of(histogram);
    for (std::size_t i = channel; i < pixels.size(); i += channels) pixels[i] = table[pixels[i]];
  }
}

Table unchanged() {
  Table table;
  std::iota(table.begin(), table.end(), std::uint8_t{0});
  return table;
}

std::size_t first_used(const Histogram& histogram) {
  return static_cast<std::size_t>(std::ranges::find_if(histogram, [](std::size_t count) { return count > 0; }) -
                                  histogram.begin());
}

std::size_t last_used(const Histogram& histogram) {
  std::size_t value = kValues - 1;
  while (histogram[value] == 0) --value;
  return value;
}

Table stretched(const Histogram& histogram) {
  const std::size_t low = first_used(histogram), high = last_used(histogram);
  Table table = unchanged();
  for (std::size_t value = low; low < high && value <= high; ++value)
    table[value] = static_cast<std::uint8_t>((value - low) * 255 / (high - low));
  return table;
}

Table equalized(const Histogram& histogram) {
  const std::size_t pixels = std::accumulate(histogram.begin(), histogram.end(), std::size_t{0});
  const std::size_t step = (pixels - histogram[last_used(histogram)]) / 255;
  Table table = unchanged();
  if (step == 0) return table;
  std::size_t sum = step / 2;
  for (std::size_t value = 0; value < kValues; ++value) {
    table[value] = static_cast<std::uint8_t>(std::min<std::size_t>(sum / step, 255));
    sum += histogram[value];
  }
  return table;
}

}  // namespace

std::int32_t fixed_point(double factor) {
  return static_cast<std::int32_t>(std::lround(kFactorOne * factor));
}

void adjust_brightness(std::span<std::uint8_t> pixels, std::int32_t factor) {
  scale(pixels, factor, 0);
}

void adjust_contrast(std::span<std::uint8_t> pixels, std::size_t channels, std::int32_t factor) {
  scale(pixels, factor, mean_gray(pixels, channels));
}

void adjust_saturation(std::span<std::uint8_t> pixels, std::int32_t factor) {
  for (std::size_t i = 0; i < pixels.size(); i += 3) {
    const std::int32_t offset = (kFactorOne - factor) * gray(pixels.data() + i, 3);
    for (std::size_t c = 0; c < 3; ++c) pixels[i + c] = to_pixel(factor * pixels[i + c] + offset);
  }
}

// Smooths with the weights 1 1 1, 1 5 1, 1 1 1; leaves the pixels at the edges unchanged.
void adjust_sharpness(std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels, std::int32_t factor,
                      std::vector<std::uint8_t>& scratch) {
  scratch.assign(pixels.begin(), pixels.end());
  const std::size_t row = size.width * channels;
  for (std::size_t y = 1; y + 1 < size.height; ++y) {
    for (std::size_t i = y * row + channels; i < (y + 1) * row - channels; ++i) {
      std::int32_t sum = 4 * scratch[i];
      for (const std::size_t line : {i - row, i, i + row})
        sum += scratch[line - channels] + scratch[line] + scratch[line + channels];
      const std::int32_t smooth = (sum + 6) / 13;
      pixels[i] = to_pixel(factor * scratch[i] + (kFactorOne - factor) * smooth);
    }
  }
}

void posterize(std::span<std::uint8_t> pixels, int bits) {
  const auto mask = static_cast<std::uint8_t>(0xff << (8 - bits));
  for (std::uint8_t& pixel : pixels) pixel &= mask;
}

void solarize(std::span<std::uint8_t> pixels, int threshold) {
  for (std::uint8_t& pixel : pixels)
    if (pixel >= threshold) pixel = static_cast<std::uint8_t>(255 - pixel);
}

void stretch_contrast(std::span<std::uint8_t> pixels, std::size_t channels) {
  look_up(pixels, channels, stretched);
}

void equalize_histogram(std::span<std::uint8_t> pixels, std::size_t channels) {
  look_up(pixels, channels, equalized);
}

Affine rotation(double degrees, const ImageSize& size) {
  const double angle = degrees * std::numbers::pi / 180, cosine = std::cos(angle), sine = std::sin(angle);
  const double x = static_cast<double>(size.width) / 2, y = static_cast<double>(size.height) / 2;
  return {cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y};
}

// Computes in fixed point with 16 fractional bits.
void transform(std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels, const Affine& map,
               std::vector<std::uint8_t>& scratch) {
  constexpr int kBits = 16;
  const auto fixed = [](double number) { return static_cast<std::int64_t>(std::floor(number * (1 << kBits) + 0.5)); };
  const std::int64_t xx = fixed(map.xx), xy = fixed(map.xy), yx = fixed(map.yx), yy = fixed(map.yy);
  const std::int64_t x0 = fixed(map.x0 + (map.xx + map.xy) / 2), y0 = fixed(map.y0 + (map.yx + map.yy) / 2);
  const auto height = static_cast<std::int64_t>(size.height), width = static_cast<std::int64_t>(size.width);
  scratch.assign(pixels.begin(), pixels.end());
  std::uint8_t* to = pixels.data();
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x, to += channels) {
      const std::int64_t from_x = (xx * x + xy * y + x0) >> kBits, from_y = (yx * x + yy * y + y0) >> kBits;
      const bool inside = from_x >= 0 && from_x < width && from_y >= 0 && from_y < height;
      const auto from = static_cast<std::size_t>(from_y * width + from_x) * channels;
      for (std::size_t c = 0; c < channels; ++c) to[c] = inside ? scratch[from + c] : std::uint8_t{0};
    }
  }
}

}  // namespace annulus
