#pragma once

#include <cstddef>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// own[i] += peer[i]. `peer` may be memory of another GPU or process. REQUIRES: the two do not overlap. If their
// distances from a multiple of 16 bytes differ, the addition is not vectorized. Uses only a part of the GPU, since it
// runs beside the computation.
void add_from_peer(const float* peer, float* own, std::size_t count, cudaStream_t stream);

}  // namespace annulus::cuda
