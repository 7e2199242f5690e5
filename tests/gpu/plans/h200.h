#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/vendor/cudnn_convolution.h"
#include "tests/unit/temporary_folder.h"

namespace annulus::test {

// cuDNN's description of an H200, which need not be present.
inline std::string h200() {
  return read_text(ANNULUS_PLANS_DATA "/h200.json");
}

// A plan with cuDNN's notes.
inline std::unique_ptr<cuda::CudnnConvolutionPlan> plan(cuda::ConvolutionPlanner& planner,
                                                        const cuda::ConvolutionProblem& problem) {
  return std::unique_ptr<cuda::CudnnConvolutionPlan>(
      dynamic_cast<cuda::CudnnConvolutionPlan*>(planner.plan(problem).release()));
}

constexpr Precision kPrecisions[] = {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16};

}  // namespace annulus::test
