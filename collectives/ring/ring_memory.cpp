#include "collectives/ring/ring_memory.h"

#include <cstring>

namespace annulus {

std::span<std::byte> HostRingMemory::allocate(std::size_t bytes) {
  const DeviceView memory = memory_.emplace_back(allocate_host(bytes)).view();
  return {memory.address, memory.bytes};
}

// __restrict: they do not overlap, so the compiler can use vector instructions.
void HostRingMemory::add(std::span<float> to, std::span<const std::byte> bytes) {
  float* __restrict sum = to.data();
  const float* __restrict from = reinterpret_cast<const float*>(bytes.data());
  for (std::size_t i = 0; i < to.size(); ++i) sum[i] += from[i];
}

void HostRingMemory::copy(std::span<float> to, std::span<const std::byte> bytes) {
  std::memcpy(to.data(), bytes.data(), bytes.size());
}

}  // namespace annulus
