#pragma once

#include <functional>
#include <memory>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device.h"

namespace annulus::cuda {

// Captures, as a CUDA graph, the work that work() puts on the stream, without doing it. Each replay costs a single
// launch.
std::unique_ptr<Recording> record(cudaStream_t stream, const std::function<void()>& work);

}  // namespace annulus::cuda
