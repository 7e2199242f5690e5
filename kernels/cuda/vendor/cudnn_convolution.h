#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/cudnn_graph.h"

// The parts of make_convolution_planner()'s planner, for tests.
namespace annulus::cuda {

// "forward convolution in bf16, 256 x 56 x 56 x 64 by 64 filters of 3 x 3, stride 1, padding 1"; if the padding of rows
// and columns differs: "padding 0 x 3"
std::string to_string(const ConvolutionProblem& problem);

cudnn::Graph convolution_graph(const ConvolutionProblem& problem);

class CudnnConvolutionPlan : public ConvolutionPlan {
 public:
  virtual const cudnn::EngineConfiguration& configuration() const = 0;
};

// Makes a planner of CudnnConvolutionPlans for a GPU that this machine need not have; its properties are in cuDNN's
// JSON format. Plans are built but cannot run. So nothing can be measured, and with a tuning file, all problems must be
// in it.
std::unique_ptr<ConvolutionPlanner> make_convolution_planner_for(const std::string& device_properties_json,
                                                                 const std::filesystem::path& tuning = {});

}  // namespace annulus::cuda
