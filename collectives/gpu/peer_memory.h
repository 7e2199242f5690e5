#pragma once

#include <array>
#include <cstddef>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// GPU memory that other processes of this machine can have in their own address space, be it on this GPU or on one
// that reaches it.
using MemoryHandle = std::array<std::byte, sizeof(cudaIpcMemHandle_t)>;

// Zeroed, and alone in its pages: who opens it sees nothing else.
Buffer allocate_sharable(std::size_t bytes);
MemoryHandle handle_of(const Buffer& memory);

struct PeerMemoryRelease {
  void operator()(std::byte* memory) const { cudaIpcCloseMemHandle(memory); }
};
using PeerMemory = std::unique_ptr<std::byte, PeerMemoryRelease>;

// Of another process, which must keep it until this is gone. Throws Error where it cannot be reached.
PeerMemory open_memory(const MemoryHandle& handle);

}  // namespace annulus::cuda
