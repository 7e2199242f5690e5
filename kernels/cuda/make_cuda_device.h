#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"

namespace annulus {

// Why no GPU can be used here: the program was built without CUDA, or there is no driver or no GPU. Empty where one
// can.
std::string why_no_gpu();

// How many this process sees; 0 where none can be used.
int gpus_here();

// Where it sits, and what it is: "0000:19:00.0, NVIDIA H200".
std::string gpu_name(int number);

// The GPU of this number. Throws Error where it cannot be used.
std::unique_ptr<Device> make_cuda_device(const DeviceRequest& request);

}  // namespace annulus
