#pragma once

#include <functional>
#include <memory>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device.h"

namespace annulus::cuda {

// What work() puts on the stream, as a CUDA graph: it is not done now, and costs one launch each time.
std::unique_ptr<Recording> record(cudaStream_t stream, const std::function<void()>& work);

}  // namespace annulus::cuda
