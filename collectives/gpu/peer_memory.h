#pragma once

#include <array>
#include <cstddef>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// Identifies GPU memory that other processes on this machine can map, on the same GPU or on a GPU with peer access to
// it.
using MemoryHandle = std::array<std::byte, sizeof(cudaIpcMemHandle_t)>;

// Allocates zeroed memory in separate pages, so that a process that maps it sees nothing else.
Buffer allocate_sharable(std::size_t bytes);
MemoryHandle handle_of(const Buffer& memory);

struct PeerMemoryRelease {
  void operator()(std::byte* memory) const { cudaIpcCloseMemHandle(memory); }
};
using PeerMemory = std::unique_ptr<std::byte, PeerMemoryRelease>;

// Maps another process's memory, which must not be freed before the result is destroyed. Throws Error if it cannot be
// accessed.
PeerMemory open_memory(const MemoryHandle& handle);

}  // namespace annulus::cuda
