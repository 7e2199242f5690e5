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

int current_device();  // the calling thread's

// Owners of CUDA's handles.
struct StreamRelease {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct EventRelease {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamRelease>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventRelease>;

// A stream that does not wait for the legacy default stream. `urgent`: kernels on it have priority over other streams'.
Stream make_stream(bool urgent = false);

Event make_event();         // without timing, which costs less
Event make_timed_event();   // for cudaEventElapsedTime
Event make_shared_event();  // an event that another process may open

Buffer allocate_device(std::size_t bytes);          // zeroed; throws Error if there is not enough memory
std::size_t allocated_bytes();                      // by allocate_device(), on all devices, and not yet released
void zero(DeviceView memory);                       // complete on return and so valid for every stream
Buffer to_device(std::span<const std::byte> host);  // a copy, also complete
Buffer allocate_pinned(std::size_t bytes);          // host memory for copies to and from a device

// Returns how many blocks of `threads` threads to run for `things` items, limited to as many as fill the device several
// times: kernels process the rest in grid strides.
unsigned blocks_for(std::size_t things, unsigned threads, int multiprocessors);

// A block's threads, and the size of the shared memory that kernels declare without a size.
struct Block {
  Block(dim3 all, std::size_t bytes = 0) : threads(all), shared_bytes(bytes) {}
  Block(unsigned all, std::size_t bytes = 0) : Block(dim3(all), bytes) {}

  dim3 threads;
  std::size_t shared_bytes;
};

inline cudaLaunchConfig_t launch_configuration(dim3 grid, const Block& block, cudaStream_t stream) {
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = grid;
  configuration.blockDim = block.threads;
  configuration.dynamicSmemBytes = block.shared_bytes;
  configuration.stream = stream;
  return configuration;
}

// Launches a kernel; throws Error if that fails. (Without <<<>>> a kernel's file is plain C++ to other compilers.)
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, const Block& block, cudaStream_t stream,
            Arguments&&... arguments) {
  const cudaLaunchConfig_t configuration = launch_configuration(grid, block, stream);
  check(cudaLaunchKernelEx(&configuration, kernel, static_cast<Parameters>(arguments)...));
}

// The first parameter in a kernel that calls await() (predecessor.h) before anything else.
struct Predecessor {};

// Whether await() waits in this kernel, and so in all others: they were compiled for compute capability 9.0 or later.
bool awaits_predecessor(const void* kernel);

// Launches a kernel that takes a Predecessor; `arguments` leave the predecessor out. The kernel may start before the
// stream's previous kernel has ended, which hides the gap between them (programmatic dependent launch).
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Predecessor, Parameters...), dim3 grid, const Block& block, cudaStream_t stream,
            Arguments&&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t configuration = launch_configuration(grid, block, stream);
  configuration.attrs = &early;
  configuration.numAttrs = awaits_predecessor(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  check(cudaLaunchKernelEx(&configuration, kernel, Predecessor{}, static_cast<Parameters>(arguments)...));
}

}  // namespace annulus::cuda
