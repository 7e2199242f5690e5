#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <source_location>
#include <span>
#include <type_traits>

#include "kernels/base/tensor.h"

namespace annulus::cuda {

// Throws Error with CUDA's own text if a call failed.
void check(cudaError_t result, std::source_location place = std::source_location::current());

int current_device();  // of the calling thread

// Owners of CUDA's handles.
struct StreamRelease {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct EventRelease {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamRelease>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventRelease>;

// A stream that does not wait for the legacy default stream. `urgent`: its kernels have priority over other streams'.
Stream make_stream(bool urgent = false);

Event make_event();         // without timing, which costs less
Event make_timed_event();   // for cudaEventElapsedTime
Event make_shared_event();  // one that another process may open

Buffer allocate_device(std::size_t bytes);          // zeroed; throws Error if there is not enough memory
void zero(DeviceView memory);                       // complete on return and so valid for every stream
Buffer to_device(std::span<const std::byte> host);  // a copy, complete likewise
Buffer allocate_pinned(std::size_t bytes);          // host memory for copies to and from a device

// Returns the number of blocks of `threads` threads for `things` items, limited to as many as fill the device several
// times: kernels process the rest in grid strides.
unsigned blocks_for(std::size_t things, unsigned threads, int multiprocessors);

// Launches a kernel; throws Error if that fails. (A function instead of <<<>>>, so that a kernel's file is plain C++ to
// other compilers.)
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = grid;
  configuration.blockDim = block;
  configuration.stream = stream;
  check(cudaLaunchKernelEx(&configuration, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace annulus::cuda
