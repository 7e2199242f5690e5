#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/cublaslt_bias.h"

namespace annulus::cuda {
namespace {

__device__ void store(float value, __half* to) {
  *to = __float2half_rn(value);
}
__device__ void store(float value, __nv_bfloat16* to) {
  *to = __float2bfloat16_rn(value);
}

template <class Narrow>
__global__ void narrow_kernel(const float* bias, std::size_t count, Narrow* narrow) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) store(bias[i], narrow + i);
}

}  // namespace

void narrow_bias(const float* bias, std::size_t count, DataType type, void* narrow, cudaStream_t stream) {
  constexpr unsigned kThreads = 256;
  const dim3 blocks(static_cast<unsigned>((count + kThreads - 1) / kThreads));
  if (type == DataType::bf16)
    launch(narrow_kernel<__nv_bfloat16>, blocks, kThreads, stream, bias, count, static_cast<__nv_bfloat16*>(narrow));
  else
    launch(narrow_kernel<__half>, blocks, kThreads, stream, bias, count, static_cast<__half*>(narrow));
}

}  // namespace annulus::cuda
