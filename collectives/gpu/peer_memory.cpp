#include "collectives/gpu/peer_memory.h"

#include <algorithm>
#include <bit>

#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;  // the GPU's page size; smaller allocations share a page

}  // namespace

Buffer allocate_sharable(std::size_t bytes) {
  return allocate_device((std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage);
}

MemoryHandle handle_of(const Buffer& memory) {
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, memory.view().address));
  return std::bit_cast<MemoryHandle>(handle);
}

PeerMemory open_memory(const MemoryHandle& handle) {
  void* address = nullptr;
  const cudaError_t result =
      cudaIpcOpenMemHandle(&address, std::bit_cast<cudaIpcMemHandle_t>(handle), cudaIpcMemLazyEnablePeerAccess);
  if (result != cudaSuccess) {
    cudaGetLastError();  // clears the error, or the next check would find it
    fail("a GPU cannot access its neighbour's memory: {}", cudaGetErrorString(result));
  }
  return PeerMemory(static_cast<std::byte*>(address));
}

}  // namespace annulus::cuda
