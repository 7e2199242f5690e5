#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/vendor/attention_plan.h"
#include "kernels/cuda/vendor/cudnn_graph.h"

// The parts of make_attention_planner()'s planner, for tests.
namespace annulus::cuda {

struct AttentionGraph {
  cudnn::Graph graph;
  std::vector<std::int64_t> ids;  // tensors with an address at run time
};
AttentionGraph attention_graph(const AttentionProblem& problem);

class CudnnAttentionPlan : public AttentionPlan {
 public:
  virtual const cudnn::EngineConfiguration& configuration() const = 0;
};

// Makes a planner that builds CudnnAttentionPlans for a GPU that this machine need not have, described in cuDNN's JSON
// format. The plans cannot run.
std::unique_ptr<AttentionPlanner> make_attention_planner_for(const std::string& device_properties_json,
                                                             const Tuning& tuning = {},
                                                             std::shared_ptr<TuningBudget> budget = nullptr);
std::string to_string(const AttentionProblem& problem);  // its name in a tuning file

}  // namespace annulus::cuda
