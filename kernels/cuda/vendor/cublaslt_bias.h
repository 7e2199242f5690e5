#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/base/tensor.h"

namespace annulus::cuda {

// A copy of a bias in a 16-bit type: with output of that type, cuBLASLt takes no other.
void narrow_bias(const float* bias, std::size_t count, DataType type, void* narrow, cudaStream_t stream);

}  // namespace annulus::cuda
