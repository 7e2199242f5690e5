#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/mixed_label.h"
#include "src/data/augment.h"

namespace annulus {

// Mixes an image with another image, equally large, by mixup (Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: beyond
// empirical risk minimization", 2018), which takes both images' weighted mean, or CutMix (Yun et al., "CutMix", 2019),
// which replaces a rectangle by the other image's pixels; with both alphas given, by either with probability 1/2. Draws
// the first image's share from Beta(alpha, alpha); returns mixup's share as drawn, CutMix's as the part actually kept,
// in units of MixedLabel::kWhole. REQUIRES: alphas at most 1, not both 0.
std::int32_t mix_images(Draws& draws, const Mixing& mixing, std::span<std::uint8_t> pixels,
                        std::span<const std::uint8_t> other, const ImageSize& size, std::size_t channels);

// Puts the label with the larger share first. `share` is the share of `label`.
MixedLabel mixed_label(std::int32_t label, std::int32_t other, std::int32_t share);

}  // namespace annulus
