#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <source_location>
#include <span>
#include <type_traits>

#include "kernels/base/tensor.h"

namespace annulus::cuda {

// Throws Error with CUDA's own text where a call failed.
void check(cudaError_t result, std::source_location place = std::source_location::current());

int current_device();  // of the calling thread

// Owners of CUDA's handles; they convert to what CUDA's functions take.
struct StreamRelease {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct EventRelease {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamRelease>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventRelease>;

// A lane that does not wait for the legacy default stream. `urgent`: its kernels go before those of other lanes.
Stream make_stream(bool urgent = false);

Event make_event();         // for order only, which costs less
Event make_timed_event();   // for cudaEventElapsedTime
Event make_shared_event();  // that another process may open

Buffer allocate_device(std::size_t bytes);          // zeroed; throws Error where there is not so much
Buffer to_device(std::span<const std::byte> host);  // a copy, which is there for every lane
Buffer allocate_pinned(std::size_t bytes);          // of the host, that copies to and from a device go through

// How many blocks of so many threads it takes for so many things, but no more than fill a device several times:
// kernels go over the rest in strides of the grid.
unsigned blocks_for(std::size_t things, unsigned threads, int multiprocessors);

// Starts a kernel, and throws Error where that failed. (A function rather than <<<>>>, so that a kernel's file is
// plain C++ to other compilers.)
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = grid;
  configuration.blockDim = block;
  configuration.stream = stream;
  check(cudaLaunchKernelEx(&configuration, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace annulus::cuda
