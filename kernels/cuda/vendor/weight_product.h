#pragma once

#include <memory>

#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

// Plans backward_weights with wide weights: multiplies the transposed output's gradient {pixels, filters} with the
// input {pixels, channels}, over all images' pixels. cuDNN 9.19 can write float32 from 16 bits only by plans that take
// a second each to compile, in every process. REQUIRES: problem.is_product().
std::unique_ptr<ConvolutionPlan> plan_weight_product(const ConvolutionProblem& problem, MatmulPlanner& matmuls);

}  // namespace annulus::cuda
