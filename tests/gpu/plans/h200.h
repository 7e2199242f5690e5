#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/vendor/cudnn_convolution.h"
#include "tests/test_file.h"
#include "tests/unit/temporary_folder.h"

namespace annulus::test {

// cuDNN's description of a GPU, "h200" or "a100", which need not be present.
inline std::string description_of(const std::string& gpu) {
  return read_text(test_file("gpu/plans/" + gpu + ".json"));
}

inline std::string h200() {
  return description_of("h200");
}

// A plan with cuDNN's notes.
inline std::unique_ptr<cuda::CudnnConvolutionPlan> plan(cuda::ConvolutionPlanner& planner,
                                                        const cuda::ConvolutionProblem& problem) {
  return std::unique_ptr<cuda::CudnnConvolutionPlan>(
      dynamic_cast<cuda::CudnnConvolutionPlan*>(planner.plan(problem).release()));
}

constexpr Precision kPrecisions[] = {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16};

}  // namespace annulus::test
