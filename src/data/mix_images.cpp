#include "src/data/mix_images.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/split.h"

namespace annulus {
namespace {

// Draws from Beta(alpha, alpha) (Joehnk, 1964), with logarithms, because powers of 1 / alpha may underflow.
double draw_beta(Draws& draws, double alpha) {
  for (;;) {
    const double x = std::log(draws.between(0, 1)) / alpha, y = std::log(draws.between(0, 1)) / alpha;
    const double larger = std::max(x, y);
    if (std::exp(x) + std::exp(y) <= 1 && std::isfinite(larger))
      return std::exp(x - larger) / (std::exp(x - larger) + std::exp(y - larger));
  }
}

std::int32_t mix_up(double share, std::span<std::uint8_t> pixels, std::span<const std::uint8_t> other) {
  constexpr std::int32_t kWhole = MixedLabel::kWhole;
  const auto own = static_cast<std::int32_t>(std::lround(share * kWhole));
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<std::uint8_t>((own * pixels[i] + (kWhole - own) * other[i] + kWhole / 2) / kWhole);
  return own;
}

// Draws a range within `size`: up to `half` on both sides around a random position.
Range draw_range(Draws& draws, std::size_t size, std::size_t half) {
  const std::size_t middle = draws.below(size);
  return {middle - std::min(half, middle), std::min(middle + half, size)};
}

std::int32_t cut_mix(Draws& draws, double share, std::span<std::uint8_t> pixels, std::span<const std::uint8_t> other,
                     const ImageSize& size, std::size_t channels) {
  const double half = std::sqrt(1 - share) / 2;  // of a side
  const Range rows = draw_range(draws, size.height, static_cast<std::size_t>(half * static_cast<double>(size.height)));
  const Range columns = draw_range(draws, size.width, static_cast<std::size_t>(half * static_cast<double>(size.width)));
  for (std::size_t y = rows.begin; y < rows.end; ++y) {
    const std::size_t begin = (y * size.width + columns.begin) * channels;
    std::ranges::copy(other.subspan(begin, columns.size() * channels),
                      pixels.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  const double replaced = static_cast<double>(rows.size() * columns.size());
  return static_cast<std::int32_t>(
      std::lround(MixedLabel::kWhole * (1 - replaced / static_cast<double>(size.height * size.width))));
}

}  // namespace

std::int32_t mix_images(Draws& draws, const Mixing& mixing, std::span<std::uint8_t> pixels,
                        std::span<const std::uint8_t> other, const ImageSize& size, std::size_t channels) {
  const bool cuts = mixing.mixup == 0 || (mixing.cutmix > 0 && draws.below(2) == 1);
  const double share = draw_beta(draws, cuts ? mixing.cutmix : mixing.mixup);
  return cuts ? cut_mix(draws, share, pixels, other, size, channels) : mix_up(share, pixels, other);
}

MixedLabel mixed_label(std::int32_t label, std::int32_t other, std::int32_t share) {
  if (2 * share < MixedLabel::kWhole) return {other, label, MixedLabel::kWhole - share};
  return {label, other, share};
}

}  // namespace annulus
