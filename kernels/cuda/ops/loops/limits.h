#pragma once

#include <cstddef>

#include "kernels/base/split.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/operation.h"

// Checks of the kernels' assumptions; all throw Error if they do not hold. (They are not in the kernels' files because
// nvcc cannot compile the library that formats the errors.)
namespace annulus::cuda {

// Returns the number of 16-byte vectors in a tensor of values: fewer than 2^32, which is 64 GiB.
unsigned vectors_of(const ChannelsLast& values);

// 32 bits can count the elements of a tensor that is not processed in whole vectors.
void expect_countable(std::size_t elements);

// Loops have a fixed number of dimensions.
void expect_dimensions(unsigned dimensions, unsigned most);

// The output of a transposed convolution has fewer extra pixels than its stride.
void expect_extra(const Extent& extra, const Extent& stride);

// A slice or a slot of an arena begins and ends at a multiple of `block` floats.
void expect_blocks(const Range& slice, std::size_t block);

}  // namespace annulus::cuda
