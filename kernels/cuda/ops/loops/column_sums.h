#pragma once

#include "kernels/cuda/ops/loops/vectors.h"
#include "kernels/cuda/runtime/columns.h"

// Device functions for kernels over columns (columns.h).
namespace annulus::cuda {

// Partial sums. combined() adds two such that 0 + x, x + 0 and x are the same.
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

// A count of values, their mean, and the sum of their squared distances to the mean. There is no cancellation, however
// far the mean is from 0 (Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances", 1979).
struct Moments {
  float count, mean, squares;
};
__device__ inline Moments combined(const Moments& a, const Moments& b) {
  if (b.count == 0) return a;
  const float count = a.count + b.count;
  const float distance = b.mean - a.mean, share = b.count / count;
  return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}

// Returns the index of a thread's vector within a row.
__device__ inline unsigned own_vector() {
  return blockIdx.x * blockDim.x + threadIdx.x;
}

// Iterates over a thread's rows, in batches to have `batch` loads in flight: calls load(k, index) for each row, where
// index counts vectors from the matrix's first, and then use(k, index) for each. If `from_end`, goes from the last row
// to the first, because the rows that the previous pass read last may still be in the cache.
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

// Adds up the threads' sums in each column of the block. Afterwards all threads in the column have the result.
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

// Adds up the blocks' stored sums in a group of stripes, which lie kGroups apart.
template <class Sum>
__device__ Sum sum_of_group(const Columns& columns, const Sum* partial, unsigned group, unsigned channel) {
  constexpr unsigned kBatch = 8;  // loads in flight
  Sum sum{};
  for (unsigned first = group; first < columns.stripes; first += kBatch * Columns::kGroups) {
    Sum stored[kBatch]{};
    for (unsigned k = 0; k < kBatch; ++k)
      if (const std::size_t stripe = first + k * Columns::kGroups; stripe < columns.stripes)
        stored[k] = partial[stripe * columns.channels + channel];
    for (unsigned k = 0; k < kBatch; ++k) sum = combined(sum, stored[k]);
  }
  return sum;
}

// In a block of sum_block(): adds up the blocks' stored sums, and calls finish(channel, sum) once for each channel.
template <class Sum, class Finish>
__device__ void add_up_stripes(const Columns& columns, const Sum* partial, const Finish& finish) {
  const unsigned channel = blockIdx.x * blockDim.x + threadIdx.x;
  Sum sum[1]{};
  if (channel < columns.channels) sum[0] = sum_of_group(columns, partial, threadIdx.y, channel);
  add_up_block(sum);
  if (threadIdx.y == 0 && channel < columns.channels) finish(channel, sum[0]);
}

// Adds in the order of add_up_block().
template <unsigned count, class Sum>
__device__ Sum added_in_halves(Sum (&sums)[count]) {
  for (unsigned half = count / 2; half > 0; half /= 2)
    for (unsigned k = 0; k < half; ++k) sums[k] = combined(sums[k], sums[k + half]);
  return sums[0];
}

// Adds up all groups; each has stored the sum in place of the first stripe's.
template <class Sum>
__device__ Sum sum_of_groups(const Columns& columns, const Sum* partial, unsigned channel) {
  constexpr unsigned kBatch = 8, kBatches = Columns::kGroups / kBatch;
  Sum sums[kBatches];
  for (unsigned i = 0; i < kBatches; ++i) {
    Sum stored[kBatch]{};
    for (unsigned k = 0; k < kBatch; ++k)
      if (const std::size_t group = k * kBatches + i; group < columns.stripes)
        stored[k] = partial[group * columns.channels + channel];
    sums[i] = added_in_halves(stored);
  }
  return added_in_halves(sums);
}

// Whether the block is the last of `blocks` that call this with the same counter, which is 0 before and after. Then all
// threads in the block see what these blocks' threads wrote before they called it.
__device__ inline bool is_last_of(unsigned blocks, unsigned* counter) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    __threadfence();
    last = atomicInc(counter, blocks - 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// Adds up all blocks' sums, in the order of store_block_sums() and add_up_stripes() whichever block comes last, and
// calls finish(channel, sum) once for each channel. The last block in each group of stripes adds up the group, and the
// last of these blocks adds up the groups, because a single block would need longer than another kernel. `counters`:
// counters() zeros, which are zeros again afterwards.
template <unsigned count, class Sum, class Finish>
__device__ void add_up_columns(const Columns& columns, Sum (&sums)[count], Sum* partial, unsigned* counters,
                               Finish finish) {
  static_assert(Columns::kThreads / Columns::kWidth >= count, "a thread for each of the block's channels");
  store_block_sums(columns, sums, partial);
  const unsigned group = blockIdx.y % Columns::kGroups, groups = min(columns.stripes, Columns::kGroups);
  const unsigned stripes = (columns.stripes - group + Columns::kGroups - 1) / Columns::kGroups;  // in the group
  const unsigned within = threadIdx.y * blockDim.x + threadIdx.x;
  const unsigned channel = blockIdx.x * blockDim.x * count + within;
  const bool has_channel = within < blockDim.x * count && channel < columns.channels;
  unsigned* const own_counters = counters + blockIdx.x * (Columns::kGroups + 1);
  if (stripes > 1) {
    if (!is_last_of(stripes, own_counters + group)) return;
    if (has_channel)
      partial[std::size_t{group} * columns.channels + channel] = sum_of_group(columns, partial, group, channel);
  }
  if (!is_last_of(groups, own_counters + Columns::kGroups)) return;
  if (has_channel) finish(channel, sum_of_groups(columns, partial, channel));
}

}  // namespace annulus::cuda
