#pragma once

#include <cstddef>

#include <string_view>

#include "kernels/base/split.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/operation.h"

// Checks of the kernels' assumptions; all throw Error if they do not hold. (They are not in the kernels' files because
// nvcc cannot compile the library that formats the errors.)
namespace annulus::cuda {

// Returns the number of 16-byte vectors in a tensor of values: fewer than 2^32, which is 64 GiB.
unsigned vectors_of(const ChannelsLast& values);

// The pixels of a max pool's window can be numbered in one byte.
void expect_pool_window(const Extent& kernel);

// Loops have a fixed number of dimensions.
void expect_dimensions(unsigned dimensions, unsigned most);

// Reports an operation that has no kernel for GPUs.
[[noreturn]] void refuse(std::string_view operation);

// A slice or a slot of an arena begins and ends at a multiple of `block` floats.
void expect_blocks(const Range& slice, std::size_t block);

}  // namespace annulus::cuda
