#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kernels/base/split.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

constexpr std::size_t kMostPeers = 16;  // arrays that are summed at a time

// to[i] = ((arrays[0][i] + arrays[1][i]) + arrays[2][i]) + ... `arrays` may be memory of other GPUs or processes; `to`
// may be one of the arrays, but must not overlap them otherwise. REQUIRES: 2 to kMostPeers arrays. Vectorized if all
// addresses are multiples of 16. Uses only a part of the GPU, since it runs beside the computation.
void sum_arrays(std::span<const float* const> arrays, float* to, std::size_t count, cudaStream_t stream);

// Sums whole arrays that are cut into a chunk per array: chunk c is summed from array c on, and after the last array
// from the first. `to` is none of the arrays. For small arrays: a block sums a few hundred floats.
void sum_chunks(std::span<const float* const> arrays, std::span<const Range> chunks, float* to, cudaStream_t stream);

}  // namespace annulus::cuda
