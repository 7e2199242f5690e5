#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/vendor/cudnn_convolution.h"
#include "kernels/cuda/vendor/cudnn_convolution_plan.h"
#include "kernels/operations/convolution.h"
#include "tests/test_file.h"
#include "tests/unit/temporary_folder.h"

namespace annulus::test {

// cuDNN's description of a GPU, "h200", "h100" or "a100", which need not be present.
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

// A convolution's forward pass in a device's layout: channels in blocks.
inline cuda::ConvolutionProblem forward_problem(const Convolution& convolution, const Shape& input,
                                                Precision precision) {
  const auto channels = [&](std::size_t count) {
    return cuda::channels_last(cuda::value_spec({1, count, 1, 1}, value_type(precision))).channels();
  };
  return {.pass = cuda::Forward{},
          .precision = precision,
          .batch = input[0],
          .channels = channels(input[1]),
          .height = input[2],
          .width = input[3],
          .filters = channels(convolution.channels),
          .kernel = convolution.kernel,
          .stride = convolution.stride,
          .padding = convolution.padding};
}

constexpr Precision kPrecisions[] = {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16};

}  // namespace annulus::test
