#pragma once

#include <cstddef>
#include <memory>
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

// Returns the bytes in use on the current GPU, by all processes; 0 if that is unknown.
std::size_t gpu_memory_in_use();

// Makes a decoder from JPEG to RGB (3 channels) or gray (1) on this GPU, for the calling thread. Throws Error if nvJPEG
// cannot be used.
std::unique_ptr<JpegDecoder> make_jpeg_decoder(int gpu, std::size_t channels);

// Opens the GPU numbered request.gpu. Throws Error if it cannot be used.
std::unique_ptr<Device> make_cuda_device(const DeviceRequest& request);

}  // namespace annulus
