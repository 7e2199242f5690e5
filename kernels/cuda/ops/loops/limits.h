#pragma once

#include <cstddef>

#include "kernels/base/split.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/operation.h"

// Check the kernels' assumptions; all throw Error if they do not hold. (They are not in the kernels' files because nvcc
// cannot compile the library that formats the errors.)
namespace annulus::cuda {

// Returns how many 16-byte vectors are in a tensor of values: fewer than 2^32, which is 64 GiB.
unsigned vectors_of(const ChannelsLast& values);

// Checks that 32 bits can count a tensor's elements, if it is not processed in whole vectors.
void expect_countable(std::size_t elements);

// Checks that a loop needs at most `most` dimensions.
void expect_dimensions(unsigned dimensions, unsigned most);

// Checks that a transposed convolution's output has fewer extra pixels than the stride.
void expect_extra(const Extent& extra, const Extent& stride);

// Checks that an arena's slice or slot begins and ends at a multiple of `block` floats.
void expect_blocks(const Range& slice, std::size_t block);

}  // namespace annulus::cuda
