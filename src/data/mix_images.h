#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/mixed_label.h"
#include "src/data/augment.h"

namespace annulus {

// Mixes an image with another one of the same size by mixup (Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: beyond empirical
// risk minimization", 2018), which takes the weighted mean of both, or CutMix (Yun et al., "CutMix", 2019), which
// replaces a rectangle by the other one's pixels; by either with probability 1/2 if both are given. The first image's
// share has the distribution Beta(alpha, alpha); that of CutMix is then the actual share of its pixels. Returns it in
// units of MixedLabel::kWhole. REQUIRES: alphas of at most 1, one of them above 0.
std::int32_t mix_images(Draws& draws, const Mixing& mixing, std::span<std::uint8_t> pixels,
                        std::span<const std::uint8_t> other, const ImageSize& size, std::size_t channels);

// `share`: of the first label. The label with the larger share comes first.
MixedLabel mixed_label(std::int32_t label, std::int32_t other, std::int32_t share);

}  // namespace annulus
