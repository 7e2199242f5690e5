#include <algorithm>
#include <cstdint>

#include "collectives/gpu/ring_sum.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 512;
// Twice as many as NCCL uses for a ring with eight GPUs; more would take multiprocessors away from the computation. Not
// measured yet.
constexpr unsigned kMostBlocks = 32;
constexpr std::size_t kVector = sizeof(float4) / sizeof(float);

// Loads that a thread has in flight: a load from another GPU takes about a microsecond.
constexpr int kLoads = 4;

__device__ float4 sum(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Adds whole vectors, in grid strides; then the remaining elements singly.
__global__ void add_vectors(const float* peer, float* own, std::size_t count) {
  const std::size_t vectors = count / kVector;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const auto* const from = reinterpret_cast<const float4*>(peer);
  auto* const to = reinterpret_cast<float4*>(own);
  std::size_t i = first;
  for (; i + (kLoads - 1) * stride < vectors; i += kLoads * stride) {
    float4 theirs[kLoads], ours[kLoads];
    for (int load = 0; load < kLoads; ++load) {
      theirs[load] = __ldcs(from + i + load * stride);
      ours[load] = to[i + load * stride];
    }
    for (int load = 0; load < kLoads; ++load) to[i + load * stride] = sum(ours[load], theirs[load]);
  }
  for (; i < vectors; i += stride) to[i] = sum(to[i], __ldcs(from + i));
  if (first < count % kVector) own[vectors * kVector + first] += peer[vectors * kVector + first];
}

__global__ void add_numbers(const float* peer, float* own, std::size_t count) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    own[i] += peer[i];
}

bool aligned(const float* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(float4) == 0;
}

unsigned blocks(std::size_t things) {
  return static_cast<unsigned>(std::clamp<std::size_t>((things + kThreads - 1) / kThreads, 1, kMostBlocks));
}

}  // namespace

void add_from_peer(const float* peer, float* own, std::size_t count, cudaStream_t stream) {
  if (count == 0) return;
  if (aligned(peer) && aligned(own))
    launch(add_vectors, blocks(count / kVector), kThreads, stream, peer, own, count);
  else
    launch(add_numbers, blocks(count), kThreads, stream, peer, own, count);
}

}  // namespace annulus::cuda
