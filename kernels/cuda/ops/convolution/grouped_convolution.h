#pragma once

#include <memory>

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {

// A pass of a convolution with groups. Channels and filters are those without padding. The weights are stored as
// {channels of a group, rows, columns, filters'}. Their gradient is wide (BackwardWeights::wide).
struct GroupedProblem {
  ConvolutionProblem windows;
  std::size_t channels, filters, groups;
};

// Plans our own kernels; results are bit-identical from run to run.
std::unique_ptr<ConvolutionPlan> plan_grouped(const GroupedProblem& problem, int multiprocessors);

}  // namespace annulus::cuda
