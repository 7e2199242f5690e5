#include "src/data/rand_augment.h"

#include <cmath>

#include "src/data/pixel_operations.h"

namespace annulus {
namespace {

bool has_sign(RandomChange change) {
  return change >= RandomChange::shear_x && change <= RandomChange::sharpness;
}

Affine shear_x(double share) {
  return {.xy = share};
}

Affine shear_y(double share) {
  return {.yx = share};
}

Affine translation(double x, double y) {
  return {.x0 = -std::trunc(x), .y0 = -std::trunc(y)};
}

}  // namespace

void apply(RandomChange change, int magnitude, std::span<std::uint8_t> pixels, const ImageSize& size,
           std::size_t channels, std::vector<std::uint8_t>& scratch) {
  constexpr double kLargestShear = 0.3, kLargestShift = 150.0 / 331, kLargestAngle = 30, kLargestFactor = 0.9;
  const double strength = static_cast<double>(magnitude) / kMostMagnitude;
  const std::int32_t factor = fixed_point(1 + kLargestFactor * strength);
  const auto move = [&](const Affine& map) { transform(pixels, size, channels, map, scratch); };
  switch (change) {
    case RandomChange::identity:
      return;
    case RandomChange::shear_x:
      return move(shear_x(kLargestShear * strength));
    case RandomChange::shear_y:
      return move(shear_y(kLargestShear * strength));
    case RandomChange::translate_x:
      return move(translation(kLargestShift * strength * static_cast<double>(size.width), 0));
    case RandomChange::translate_y:
      return move(translation(0, kLargestShift * strength * static_cast<double>(size.height)));
    case RandomChange::rotate:
      return move(rotation(kLargestAngle * strength, size));
    case RandomChange::brightness:
      return adjust_brightness(pixels, factor);
    case RandomChange::saturation:
      if (channels == 3) adjust_saturation(pixels, factor);
      return;
    case RandomChange::contrast:
      return adjust_contrast(pixels, channels, factor);
    case RandomChange::sharpness:
      return adjust_sharpness(pixels, size, channels, factor, scratch);
    case RandomChange::posterize:
      return posterize(pixels, 8 - static_cast<int>(std::nearbyint(4 * strength)));
    case RandomChange::solarize:
      return solarize(pixels, 255 - 255 * magnitude / kMostMagnitude);
    case RandomChange::stretch_contrast:
      return stretch_contrast(pixels, channels);
    case RandomChange::equalize:
      return equalize_histogram(pixels, channels);
  }
}

void rand_augment(Draws& draws, std::size_t changes, int magnitude, std::span<std::uint8_t> pixels,
                  const ImageSize& size, std::size_t channels, std::vector<std::uint8_t>& scratch) {
  for (std::size_t i = 0; i < changes; ++i) {
    const auto change = static_cast<RandomChange>(draws.below(kRandomChanges));
    const bool negative = draws.below(2) == 1 && has_sign(change);
    apply(change, negative ? -magnitude : magnitude, pixels, size, channels, scratch);
  }
}

}  // namespace annulus
