#pragma once

#include <memory>

#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

// Plans backward_weights with wide weights: the product of the transposed output's gradient {pixels, filters} and the
// input {pixels, channels}, both of all images. cuDNN 9.19 can write float32 from 16 bits only by plans that it
// compiles for a second each, in every process. REQUIRES: problem.is_product().
std::unique_ptr<ConvolutionPlan> plan_weight_product(const ConvolutionProblem& problem, MatmulPlanner& matmuls);

}  // namespace annulus::cuda
