#pragma once

#include <cstddef>

#include "kernels/base/split.h"
#include "kernels/cuda/runtime/layout.h"

// What kernels take for granted; all of it throws Error where that does not hold. (Kernels' files are kept free of the
// library that makes the errors' text: nvcc cannot compile it.)
namespace annulus::cuda {

// How many vectors of 16 bytes a tensor of values has: fewer than 2^32, which is 64 GiB.
unsigned vectors_of(const ChannelsLast& values);

// A max pool's window whose pixels one byte can number.
void expect_pool_window(std::size_t kernel);

// A slice or a slot of an arena of float32s: a multiple of so many of them, from such a multiple on.
void expect_blocks(const Range& slice, std::size_t block);

}  // namespace annulus::cuda
