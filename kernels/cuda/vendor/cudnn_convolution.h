#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {

// Makes a planner that builds CudnnConvolutionPlans for a GPU that this machine need not have, described in cuDNN's
// JSON format. The plans cannot run or be measured, so a tuning file must contain all problems.
std::unique_ptr<ConvolutionPlanner> make_convolution_planner_for(const std::string& device_properties_json,
                                                                 const Tuning& tuning = {},
                                                                 std::shared_ptr<TuningBudget> budget = nullptr);

}  // namespace annulus::cuda
