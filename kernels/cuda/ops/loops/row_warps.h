#pragma once

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/cuda/ops/loops/vectors.h"

// Kernels over rows of channels' values in which a warp processes a row at a time.
namespace annulus::cuda {

struct Rows {
  static constexpr unsigned kWarp = 32, kWarps = 4;  // threads in a warp, and warps in a block

  std::size_t rows;
  unsigned vectors;                    // in a row
  unsigned channels, channels_padded;  // in each pixel of a row

  // Calls body(row) for the rows of the thread's warp.
  template <class Body>
  __device__ void for_each(const Body& body) const {
    for (std::size_t row = std::size_t{blockIdx.x} * kWarps + threadIdx.y; row < rows;
         row += std::size_t{gridDim.x} * kWarps)
      body(row);
  }

  // Calls body(vector, used) for the thread's vectors in a row; the first `used` lanes are not padding.
  template <class T, class Body>
  __device__ void for_each_vector(const Body& body) const {
    for (unsigned vector = threadIdx.x; vector < vectors; vector += kWarp) {
      const unsigned first = vector * kLanes<T> % channels_padded;
      body(vector, channels - first < kLanes<T> ? channels - first : kLanes<T>);
    }
  }
};

// Sums over the warp, for all threads in it.
__device__ inline float warp_sum(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  return value;
}

// Launches a kernel over rows, which are the first argument after the predecessor.
template <class... Parameters, class... Arguments>
void over_rows(void (*kernel)(Predecessor, Rows, Parameters...), const Rows& rows, const Context& context,
               Arguments... arguments) {
  launch(kernel, blocks_for(rows.rows, Rows::kWarps, context.multiprocessors), dim3(Rows::kWarp, Rows::kWarps),
         context.lane.get(), rows, arguments...);
}

}  // namespace annulus::cuda
