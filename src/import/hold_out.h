#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace annulus {

// Chooses the training samples held out for validation: round(share x n) from each class with n samples, but never all.
// Chooses pseudo-randomly, depending only on the labels, in source order. Returns a flag per sample, 1 if held out.
// REQUIRES: 0 < share < 1.
std::vector<std::uint8_t> hold_out(std::span<const std::int32_t> labels, double share);

}  // namespace annulus
