#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/cudnn_graph.h"

// What the planner that make_convolution_planner() makes is built of, for tests.
namespace annulus::cuda {

// "forward convolution in bf16, 256 x 56 x 56 x 64 by 64 filters of 3 x 3, stride 1, padding 1"; a border that is no
// square: "padding 0 x 3"
std::string to_string(const ConvolutionProblem& problem);

cudnn::Graph convolution_graph(const ConvolutionProblem& problem);

// Why an engine must not be used; empty where it may.
std::string objection(const cudnn::EngineConfiguration& configuration, Precision precision);

class CudnnConvolutionPlan : public ConvolutionPlan {
 public:
  virtual const cudnn::EngineConfiguration& configuration() const = 0;
};

// Plans CudnnConvolutionPlans for a GPU that need not be here, as cuDNN describes it in JSON. They are built, but
// cannot run, so that with a tuning file it has to be in there.
std::unique_ptr<ConvolutionPlanner> make_convolution_planner_for(const std::string& device_properties_json,
                                                                 const std::filesystem::path& tuning = {});

}  // namespace annulus::cuda
