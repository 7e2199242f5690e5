#pragma once

#include "kernels/cuda/vendor/convolution_problem.h"

namespace annulus::cuda {

// Runs our product twice on the current device, for the problem's pass and precision on few pixels and channels.
// Returns whether the results agree with float64 and are bit-identical. REQUIRES: problem.is_own().
bool own_product_agrees(const ConvolutionProblem& problem);

}  // namespace annulus::cuda
