#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/base/jpeg_decoder.h"
#include "kernels/cuda/make_cuda_device.h"
#include "kernels/device.h"

namespace annulus {

// kernels/cuda/ and collectives/gpu/ are a module, libannulus_cuda.so, beside the program, which loads it the first
// time that a GPU could be used. So the program starts without CUDA's libraries, which take 150 MiB of memory, and runs
// on nodes that do not have them.

struct CudaModule {
  void* handle = nullptr;  // from dlopen
  std::string problem{};   // why it could not be loaded; empty if it was
  bool expected = false;   // there is a GPU driver, so it should have been loaded
};

// Loads the module with the first call. Thread-safe.
const CudaModule& cuda_module();

// Returns the module's object of this name, or null if there is no module.
const void* find_in_cuda_module(const char* name);

// What the module offers from this folder, "annulus_cuda_kernels": the functions in make_cuda_device.h.
struct CudaKernels {
  const char* interface;  // hashes the headers that both are compiled with; see CMakeLists.txt
  std::string (*why_no_gpu)();
  int (*gpus_here)();
  std::string (*gpu_name)(int number);
  void (*use_gpu)(int number);
  GpuMemory (*gpu_memory)();
  std::optional<double> (*gpu_joules)(int number);
  double (*product_flops_per_second)(Device& device);
  std::unique_ptr<JpegDecoder> (*make_jpeg_decoder)(int gpu, std::size_t channels);
  std::unique_ptr<Device> (*make_cuda_device)(const DeviceRequest& request);
};

}  // namespace annulus
