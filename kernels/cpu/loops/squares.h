#pragma once

#include <span>

#include "kernels/base/exact_sum.h"

namespace annulus::cpu {

// Returns the sum of the squares. The squares in each 64 bytes are added in double precision, in a fixed order, and
// these sums without rounding: the sum of the results for slices of an array, cut at multiples of 64 bytes, has the
// bits of that of the array. Nor do they depend on the number of threads.
ExactSum squares(std::span<const float> values);

}  // namespace annulus::cpu
