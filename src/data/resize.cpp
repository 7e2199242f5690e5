#include "src/data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/error.h"

namespace annulus {
namespace {

// Fixed point: weights have 14 fractional bits, because 1 must fit into a signed 16-bit number, and blended rows have 6
// bits more than a pixel. Sums stay below 2^28.
constexpr int kWeightBits = 14;
constexpr int kRowBits = 6;
constexpr int kRowShift = kWeightBits - kRowBits;
constexpr int kColumnShift = kWeightBits + kRowBits;

// Row elements whose sums stay in registers: a loop with fixed length, which the compiler vectorizes.
constexpr std::size_t kRun = 32;

// Numbers that are computed per pixel, whose channels may be fewer.
constexpr std::size_t kPixel = 4;
typedef std::int32_t Pixel __attribute__((vector_size(kPixel * sizeof(std::int32_t)), aligned(alignof(std::int32_t))));

template <std::size_t count>
void blend(const std::uint8_t* from, std::size_t stride, std::span<const std::int16_t> weights, std::int32_t* to) {
  std::int32_t sums[count];
  for (std::int32_t& sum : sums) sum = 1 << (kRowShift - 1);
  for (const std::int16_t weight : weights) {
    for (std::size_t i = 0; i < count; ++i) sums[i] += static_cast<std::int16_t>(from[i]) * weight;
    from += stride;
  }
  for (std::size_t i = 0; i < count; ++i) to[i] = sums[i] >> kRowShift;
}

}  // namespace

void Resizer::Axis::plan(double from, double length, std::size_t limit, std::size_t outputs) {
  const double scale = length / static_cast<double>(outputs);
  const double reach = std::max(scale, 1.0);
  begin = static_cast<std::size_t>(from);
  inputs = std::min(static_cast<std::size_t>(std::ceil(from + length)), limit) - begin;
  taps = std::min(static_cast<std::size_t>(std::ceil(2 * reach)), inputs);
  first.resize(outputs);
  weights.resize(outputs * taps);
  for (std::size_t i = 0; i < outputs; ++i) {
    const double centre = from - static_cast<double>(begin) + (static_cast<double>(i) + 0.5) * scale;
    const double lowest = std::clamp(std::floor(centre - reach + 0.5), 0.0, static_cast<double>(inputs - taps));
    first[i] = static_cast<std::uint32_t>(lowest);
    const auto triangle = [&](std::size_t k) {
      return std::max(0.0, 1 - std::abs(lowest + static_cast<double>(k) + 0.5 - centre) / reach);
    };
    double sum = 0;
    for (std::size_t k = 0; k < taps; ++k) sum += triangle(k);
    // Rounding the cumulative weights instead of each weight makes all weights sum to exactly 1.
    double so_far = 0;
    std::int32_t given = 0;
    for (std::size_t k = 0; k < taps; ++k) {
      so_far += triangle(k);
      const auto wanted = static_cast<std::int32_t>(std::lround((1 << kWeightBits) * so_far / sum));
      weights[i * taps + k] = static_cast<std::int16_t>(wanted - given);
      given = wanted;
    }
  }
}

void Resizer::blend_rows(const Image& from, std::size_t output) {
  const std::size_t stride = from.size.width * from.channels;
  const std::size_t count = columns_.inputs * from.channels;
  const std::uint8_t* pixels =
      from.pixels.data() + (rows_.begin + rows_.first[output]) * stride + columns_.begin * from.channels;
  const auto weights = std::span<const std::int16_t>(rows_.weights).subspan(output * rows_.taps, rows_.taps);
  std::size_t i = 0;
  for (; i + kRun <= count; i += kRun) blend<kRun>(pixels + i, stride, weights, row_.data() + i);
  for (; i < count; ++i) blend<1>(pixels + i, stride, weights, row_.data() + i);
}

template <std::size_t channels>
void Resizer::blend_columns(std::uint8_t* into) const {
  const std::int16_t* weights = columns_.weights.data();
  const std::size_t width = columns_.first.size();
  for (std::size_t x = 0; x < width; ++x) {
    const std::int32_t* from = row_.data() + columns_.first[x] * channels;
    Pixel sums = Pixel{} + (1 << (kColumnShift - 1));
    for (std::size_t k = 0; k < columns_.taps; ++k)
      sums += *reinterpret_cast<const Pixel*>(from + k * channels) * static_cast<std::int32_t>(weights[k]);
    weights += columns_.taps;
    sums >>= kColumnShift;
    const std::uint32_t pixel = static_cast<std::uint32_t>(sums[0] | sums[1] << 8 | sums[2] << 16 | sums[3] << 24);
    // Numbers written beyond a pixel belong to the next ones, which overwrite them.
    std::memcpy(into + x * channels, &pixel, (width - x) * channels >= kPixel ? kPixel : channels);
  }
}

void Resizer::resize(const Image& from, const Window& window, const ImageSize& size, std::span<std::uint8_t> into) {
  if (!takes(from.channels)) fail("cannot resize images of {} channels, only of 1 or 3", from.channels);
  rows_.plan(window.top, window.height, from.size.height, size.height);
  columns_.plan(window.left, window.width, from.size.width, size.width);
  row_.resize(columns_.inputs * from.channels + kPixel);
  const std::size_t row_bytes = size.width * from.channels;
  for (std::size_t y = 0; y < size.height; ++y) {
    blend_rows(from, y);
    std::uint8_t* row = into.data() + y * row_bytes;
    from.channels == 1 ? blend_columns<1>(row) : blend_columns<3>(row);
  }
}

}  // namespace annulus
