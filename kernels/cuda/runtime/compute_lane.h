#pragma once

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device.h"

namespace annulus::cuda {

// The stream on which a GPU computes; within Device::run_beside() the lane beside it.
cudaStream_t compute_lane(Device& device);

}  // namespace annulus::cuda
