#pragma once

#include <cstddef>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// own[i] += peer[i], where `peer` may be memory of another GPU or process. The two do not overlap, and lie equally far
// from a multiple of 16 bytes, or they are added number by number. Keeps to a part of the GPU, as it goes on beside
// what the GPU computes.
void add_from_peer(const float* peer, float* own, std::size_t count, cudaStream_t stream);

}  // namespace annulus::cuda
