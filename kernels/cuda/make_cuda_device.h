#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/jpeg_decoder.h"
#include "kernels/device.h"

namespace annulus {

// Returns why no GPU can be used: the program was built without CUDA, or there is no driver or no GPU. Empty if a GPU
// can be used.
std::string why_no_gpu();

// Returns a warning for the user if there is a GPU driver, but the program cannot use it; else empty.
std::string gpu_warning();

// Returns how many GPUs this process sees; 0 if none can be used.
int gpus_here();

// Returns a GPU's PCI address and name: "0000:19:00.0, NVIDIA H200".
std::string gpu_name(int number);

// Makes a GPU current in the calling thread. An error is left to make_cuda_device().
void use_gpu(int number);

// The current GPU's memory, in bytes.
struct GpuMemory {
  std::size_t arrays = 0;  // this process's
  std::size_t in_use = 0;  // by all processes and libraries; 0 if unknown
};
GpuMemory gpu_memory();

// Returns the joules that a GPU has taken since the driver was loaded. Nothing if NVML does not count them.
std::optional<double> gpu_joules(int number);

// Returns the FLOP/s of the fastest square matrix product in the device's precision. Measures a few sizes, in
// hundredths of a second. REQUIRES: make_cuda_device() made the device.
double product_flops_per_second(Device& device);

// Makes a decoder from JPEG to RGB (3 channels) or gray (1) on this GPU, for the calling thread. Throws Error if nvJPEG
// cannot be used.
std::unique_ptr<JpegDecoder> make_jpeg_decoder(int gpu, std::size_t channels);

// Opens the GPU numbered request.gpu. Throws Error if it cannot be used.
std::unique_ptr<Device> make_cuda_device(const DeviceRequest& request);

}  // namespace annulus
