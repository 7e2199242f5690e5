#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/base/tensor.h"

namespace annulus::cuda {

// Copies a bias to a 16-bit type. cuBLASLt requires the bias to have the output's type.
void narrow_bias(const float* bias, std::size_t count, DataType type, void* narrow, cudaStream_t stream);

}  // namespace annulus::cuda
