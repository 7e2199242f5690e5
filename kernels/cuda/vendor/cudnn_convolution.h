#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {

// Makes a planner of CudnnConvolutionPlans for a GPU that this machine need not have; its properties are in cuDNN's
// JSON format. Plans are built but cannot run. So nothing can be measured, and with a tuning file, all problems must be
// in it.
std::unique_ptr<ConvolutionPlanner> make_convolution_planner_for(const std::string& device_properties_json,
                                                                 const std::filesystem::path& tuning = {});

}  // namespace annulus::cuda
