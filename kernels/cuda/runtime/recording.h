#pragma once

#include <functional>
#include <memory>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device.h"

namespace annulus::cuda {

// Captures the work that work() puts on the stream as a CUDA graph, without doing it. Each replay costs one launch.
std::unique_ptr<Recording> record(cudaStream_t stream, const std::function<void()>& work);

}  // namespace annulus::cuda
