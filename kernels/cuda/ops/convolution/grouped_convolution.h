#pragma once

#include <memory>

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {

// Describes a pass of a convolution with groups. Channels and filters exclude padding. Weights are stored as {channels
// in a group, rows, columns, filters'}, and have a wide gradient (BackwardWeights::wide).
struct GroupedProblem {
  ConvolutionProblem windows;
  std::size_t channels, filters, groups;
};

// Plans our own kernels; results are bit-identical from run to run.
std::unique_ptr<ConvolutionPlan> plan_grouped(const GroupedProblem& problem, int multiprocessors);

}  // namespace annulus::cuda
