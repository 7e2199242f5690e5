#pragma once

#include <memory>

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {

// Whether the layer is a 3x3 convolution with padding 1, stride 1 or 2, and 16, 32 or 64 channels and
// filters.
bool is_window_product(const ConvolutionProblem& layer);

bool has_window_products();  // whether the kernel was built for the current device

// Plans our kernel. REQUIRES: is_window_product(), has_window_products(), and a problem as plan_own_product() accepts
// it. Throws Error if the image's rows are too long for a multiprocessor's shared memory.
std::unique_ptr<ConvolutionPlan> make_window_product(const ConvolutionProblem& problem, int multiprocessors);

}  // namespace annulus::cuda
