#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace annulus {

// Chooses the training samples that are held out for validation: round(share x n) of each class with n samples, but
// never all of them. The choice is pseudo-random and depends only on the labels, in the order of the source. Returns a
// flag for each sample, 1 if it is held out. REQUIRES: 0 < share < 1.
std::vector<std::uint8_t> hold_out(std::span<const std::int32_t> labels, double share);

}  // namespace annulus
