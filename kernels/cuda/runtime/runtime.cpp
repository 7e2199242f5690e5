#include "kernels/cuda/runtime/runtime.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

Event make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags));
  return Event(event);
}

// Device memory by address. Thread-safe.
class Allocations {
 public:
  void add(const void* address, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    bytes_[address] = bytes;
  }
  void remove(const void* address) {
    const std::scoped_lock lock(mutex_);
    bytes_.erase(address);
  }
  std::size_t sum() {
    const std::scoped_lock lock(mutex_);
    return std::accumulate(bytes_.begin(), bytes_.end(), std::size_t{0},
                           [](std::size_t sum, const auto& entry) { return sum + entry.second; });
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::size_t> bytes_;
};

// Never destroyed, because static buffers may be released after it.
Allocations& allocations() {
  static auto& all = *new Allocations;
  return all;
}

}  // namespace

void check(cudaError_t result, std::source_location place) {
  if (result == cudaSuccess) return;
  const bool by_kernel = result == cudaErrorIllegalAddress || result == cudaErrorLaunchFailure;
  fail("CUDA failed in {} ({}:{}): {}{}", place.function_name(), place.file_name(), place.line(),
       cudaGetErrorString(result), by_kernel ? "; set CUDA_LAUNCH_BLOCKING=1 to see which kernel" : "");
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device));
  return device;
}

Stream make_stream(bool urgent) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  return Stream(stream);
}

Event make_event() {
  return make_event(cudaEventDisableTiming);
}
Event make_timed_event() {
  return make_event(cudaEventDefault);
}
Event make_shared_event() {
  return make_event(cudaEventDisableTiming | cudaEventInterprocess);
}

Buffer allocate_device(std::size_t bytes) {
  void* address = nullptr;
  const cudaError_t result = cudaMalloc(&address, std::max<std::size_t>(bytes, 1));
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next call to cudaGetLastError() would return it
    fail("cannot allocate {} bytes of GPU memory: use a smaller batch or model", bytes);
  }
  check(result);
  allocations().add(address, bytes);
  Buffer buffer(static_cast<std::byte*>(address), bytes, [](std::byte* memory) {
    allocations().remove(memory);
    cudaFree(memory);
  });
  zero(buffer.view());
  return buffer;
}

std::size_t allocated_bytes() {
  return allocations().sum();
}

void zero(DeviceView memory) {
  check(cudaMemset(memory.address, 0, memory.bytes));
  check(cudaDeviceSynchronize());  // other streams do not wait for the memset's
}

Buffer to_device(std::span<const std::byte> host) {
  Buffer buffer = allocate_device(host.size());
  check(cudaMemcpy(buffer.view().address, host.data(), host.size(), cudaMemcpyHostToDevice));
  // cudaMemcpy() may return before the copy has ended, and other streams do not wait for it.
  check(cudaDeviceSynchronize());
  return buffer;
}

Buffer allocate_pinned(std::size_t bytes) {
  void* address = nullptr;
  check(cudaMallocHost(&address, std::max<std::size_t>(bytes, 1)));
  return {static_cast<std::byte*>(address), bytes, [](std::byte* memory) { cudaFreeHost(memory); }};
}

unsigned blocks_for(std::size_t things, unsigned threads, int multiprocessors) {
  constexpr std::size_t kBlocksEach = 16;
  const std::size_t most = kBlocksEach * static_cast<std::size_t>(multiprocessors);
  return static_cast<unsigned>(std::clamp<std::size_t>((things + threads - 1) / threads, 1, most));
}

bool awaits_predecessor(const void* kernel) {
  static const bool all_do = [kernel] {  // all are compiled for the same
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel));
    return attributes.ptxVersion >= 90;
  }();
  return all_do;
}

}  // namespace annulus::cuda
