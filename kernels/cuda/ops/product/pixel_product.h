#pragma once

#include <memory>

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {

bool has_pixel_products();  // whether the kernel was built for the current device: only for compute capability 9.0

// Plans our kernel. REQUIRES: has_pixel_products(), and a problem as plan_own_product() accepts it.
std::unique_ptr<ConvolutionPlan> make_pixel_product(const ConvolutionProblem& problem, int multiprocessors);

}  // namespace annulus::cuda
