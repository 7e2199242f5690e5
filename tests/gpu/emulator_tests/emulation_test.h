#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/emulator/cuda_runtime.h"

// Blocks a stream until it is released.
class Gate {
 public:
  ~Gate() { open(); }

  void close(cudaStream_t stream) { cudaLaunchHostFunc(stream, &Gate::wait, this); }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  static void wait(void* gate) { static_cast<Gate*>(gate)->open_.wait(false); }

  std::atomic<bool> open_{false};
};

// A stream that is destroyed, when it is done, with its owner.
class OwnStream {
 public:
  OwnStream() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Device memory of `count` values, freed with its owner.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) { cudaMalloc(&values_, count * sizeof(T)); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    cudaMemcpy(values_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~DeviceArray() { cudaFree(values_); }
  DeviceArray(const DeviceArray&) = delete;

  T* get() const { return values_; }

  // Returns the values after the work enqueued on the stream.
  std::vector<T> values(cudaStream_t stream) const {
    std::vector<T> result(count_);
    cudaMemcpyAsync(result.data(), values_, count_ * sizeof(T), cudaMemcpyDeviceToHost, stream);
    return result;
  }

 private:
  std::size_t count_;
  T* values_ = nullptr;
};

template <class... Parameters, class... Arguments>
cudaError_t start(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = grid;
  configuration.blockDim = block;
  configuration.stream = stream;
  return cudaLaunchKernelEx(&configuration, kernel, static_cast<Parameters>(arguments)...);
}

// The end of a process that ran this work: the signal, or 0, and its standard error.
struct Ending {
  int signal;
  std::string text;
};
Ending ending_of(const std::function<void()>& work);
