#include <algorithm>
#include <cstdint>

#include "collectives/gpu/direct_sum.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 512, kThreadsOfSmall = 256;
constexpr unsigned kMostBlocks = 32;  // see ring_sum.cu
constexpr std::size_t kVector = sizeof(float4) / sizeof(float);

struct Arrays {
  const float* at[kMostPeers];
  int size;
};

struct Ends {
  std::size_t of[kMostPeers];  // per chunk
};

__device__ float4 sum(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Loads that a thread has in flight: a load from another GPU takes about a microsecond.
constexpr int kLoads = 4;

template <class Value, class Add>
__device__ Value sum_at(const Arrays& arrays, std::size_t i, Add add) {
  Value total{};
  for (int first = 0; first < arrays.size; first += kLoads) {
    Value loaded[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load)
      if (first + load < arrays.size)
        loaded[load] = __ldcs(reinterpret_cast<const Value*>(arrays.at[first + load]) + i);
#pragma unroll
    for (int load = 0; load < kLoads; ++load)
      if (first + load < arrays.size) total = first + load == 0 ? loaded[0] : add(total, loaded[load]);
  }
  return total;
}

// Sums whole vectors, in grid strides; then the remaining elements singly.
__global__ void sum_vectors(Arrays arrays, float* to, std::size_t count) {
  const std::size_t vectors = count / kVector;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::size_t i = first; i < vectors; i += stride)
    reinterpret_cast<float4*>(to)[i] = sum_at<float4>(arrays, i, sum);
  if (first < count % kVector)
    to[vectors * kVector + first] =
        sum_at<float>(arrays, vectors * kVector + first, [](float a, float b) { return a + b; });
}

__global__ void sum_numbers(Arrays arrays, float* to, std::size_t count) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    to[i] = sum_at<float>(arrays, i, [](float a, float b) { return a + b; });
}

__global__ void sum_all_chunks(const __grid_constant__ Arrays arrays, const __grid_constant__ Ends ends, float* to,
                               std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int array = 0;
  while (i >= ends.of[array]) ++array;
  float total = __ldcs(arrays.at[array] + i);
  for (int added = 1; added < arrays.size; ++added) {
    array = array + 1 == arrays.size ? 0 : array + 1;
    total += __ldcs(arrays.at[array] + i);
  }
  to[i] = total;
}

Arrays arguments_of(std::span<const float* const> arrays) {
  Arrays all{};
  std::ranges::copy(arrays, all.at);
  all.size = static_cast<int>(arrays.size());
  return all;
}

bool aligned(const float* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(float4) == 0;
}

unsigned blocks(std::size_t things) {
  return static_cast<unsigned>(std::clamp<std::size_t>((things + kThreads - 1) / kThreads, 1, kMostBlocks));
}

}  // namespace

void sum_arrays(std::span<const float* const> arrays, float* to, std::size_t count, cudaStream_t stream) {
  if (count == 0) return;
  const Arrays all = arguments_of(arrays);
  if (std::ranges::all_of(arrays, aligned) && aligned(to))
    launch(sum_vectors, blocks(count / kVector), kThreads, stream, all, to, count);
  else
    launch(sum_numbers, blocks(count), kThreads, stream, all, to, count);
}

void sum_chunks(std::span<const float* const> arrays, std::span<const Range> chunks, float* to, cudaStream_t stream) {
  Ends ends{};
  std::ranges::transform(chunks, ends.of, &Range::end);
  const std::size_t count = chunks.back().end;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreadsOfSmall - 1) / kThreadsOfSmall);
  launch(sum_all_chunks, blocks, kThreadsOfSmall, stream, arguments_of(arrays), ends, to, count);
}

}  // namespace annulus::cuda
