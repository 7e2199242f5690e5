#pragma once

#include "kernels/cuda/ops/vectors.h"
#include "kernels/cuda/runtime/columns.h"

// Device functions for kernels over columns (columns.h).
namespace annulus::cuda {

// Partial sums. combined() adds two of them, such that 0 + x, x + 0 and x are the same.
template <unsigned count>
struct Sums {
  float of[count];
};
template <unsigned count>
__device__ Sums<count> combined(const Sums<count>& a, const Sums<count>& b) {
  Sums<count> sums;
  for (unsigned i = 0; i < count; ++i) sums.of[i] = a.of[i] + b.of[i];
  return sums;
}

struct Maximum {
  float value;
};
__device__ inline Maximum combined(const Maximum& a, const Maximum& b) {
  return {fmaxf(a.value, b.value)};
}

// The number of some values, their mean, and the sum of their squared distances to the mean. There is no cancellation,
// however far the mean is from 0 (Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing
// sample variances", 1979).
struct Moments {
  float count, mean, squares;
};
__device__ inline Moments combined(const Moments& a, const Moments& b) {
  if (b.count == 0) return a;
  const float count = a.count + b.count;
  const float distance = b.mean - a.mean, share = b.count / count;
  return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}

// The index of a thread's vector within a row.
__device__ inline unsigned own_vector() {
  return blockIdx.x * blockDim.x + threadIdx.x;
}

// Iterates over a thread's rows, `batch` of them at a time to have that many loads in flight: calls load(k, index) for
// each, where index counts vectors from the matrix's first, and then use(k, index) for each. If `from_end`, goes from
// the last row to the first, because the rows that the previous pass read last may still be in the cache.
template <unsigned batch, class Load, class Use>
__device__ void for_each_row(const Columns& columns, bool from_end, const Load& load, const Use& use) {
  const unsigned vector = own_vector();
  if (vector >= columns.vectors) return;
  const std::size_t step = std::size_t{gridDim.y} * blockDim.y;
  const auto index = [&](std::size_t row) {
    return (from_end ? columns.rows - 1 - row : row) * columns.vectors + vector;
  };
  for (std::size_t row = std::size_t{blockIdx.y} * blockDim.y + threadIdx.y; row < columns.rows; row += batch * step) {
    for (unsigned k = 0; k < batch; ++k)
      if (row + k * step < columns.rows) load(k, index(row + k * step));
    for (unsigned k = 0; k < batch; ++k)
      if (row + k * step < columns.rows) use(k, index(row + k * step));
  }
}

// Adds up the threads' sums in each column of the block. Afterwards all threads of the column have the result.
template <unsigned count, class Sum>
__device__ void add_up_block(Sum (&sums)[count]) {
  __shared__ Sum shared[count][Columns::kThreads];
  const unsigned self = threadIdx.y * blockDim.x + threadIdx.x;
  for (unsigned i = 0; i < count; ++i) shared[i][self] = sums[i];
  for (unsigned rows = blockDim.y; rows > 1;) {
    const unsigned half = (rows + 1) / 2;
    __syncthreads();
    if (threadIdx.y + half < rows)
      for (unsigned i = 0; i < count; ++i)
        shared[i][self] = combined(shared[i][self], shared[i][self + half * blockDim.x]);
    rows = half;
  }
  __syncthreads();
  for (unsigned i = 0; i < count; ++i) sums[i] = shared[i][threadIdx.x];
  __syncthreads();  // before another call writes to `shared`
}

// Adds up the block's sums for each channel and stores them in `partial`: {stripes, channels}.
template <unsigned count, class Sum>
__device__ void store_block_sums(const Columns& columns, Sum (&sums)[count], Sum* partial) {
  add_up_block(sums);
  if (threadIdx.y > 0 || own_vector() >= columns.vectors) return;
  Sum* to = partial + std::size_t{blockIdx.y} * columns.channels + own_vector() * count;
  for (unsigned i = 0; i < count; ++i) to[i] = sums[i];
}

// In a block of sum_block(): adds up the blocks' stored sums, and calls finish(channel, sum) once for each channel.
template <class Sum, class Finish>
__device__ void add_up_stripes(const Columns& columns, const Sum* partial, const Finish& finish) {
  constexpr unsigned kStep = Columns::kThreads / Columns::kSumChannels;
  constexpr unsigned kBatch = 8;  // number of loads in flight
  const unsigned channel = blockIdx.x * blockDim.x + threadIdx.x;
  Sum sum[1]{};
  if (channel < columns.channels)
    for (unsigned first = threadIdx.y; first < columns.stripes; first += kBatch * kStep) {
      Sum stored[kBatch]{};
      for (unsigned k = 0; k < kBatch; ++k)
        if (const std::size_t stripe = first + k * kStep; stripe < columns.stripes)
          stored[k] = partial[stripe * columns.channels + channel];
      for (unsigned k = 0; k < kBatch; ++k) sum[0] = combined(sum[0], stored[k]);
    }
  add_up_block(sum);
  if (threadIdx.y == 0 && channel < columns.channels) finish(channel, sum[0]);
}

}  // namespace annulus::cuda
