#pragma once

#include <span>

#include "kernels/base/exact_sum.h"

namespace annulus::cpu {

// Returns the sum of squares. The squares in each 64 bytes are added in double precision, in a fixed order, and these
// sums without rounding: so results for an array's slices, cut at multiples of 64 bytes, add up to the bits of the
// whole array's result. Nor do they depend on the thread count.
ExactSum squares(std::span<const float> values);

}  // namespace annulus::cpu
