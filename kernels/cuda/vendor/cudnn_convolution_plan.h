#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/cudnn_graph.h"
#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

// A graph, with an engine that computes the graph.
struct BuiltConvolution {
  ConvolutionProblem problem;
  std::shared_ptr<const cudnn::Graph> graph;
  cudnn::EngineConfiguration configuration;
  cudnn::Descriptor plan;
};
using BuiltPointer = std::shared_ptr<const BuiltConvolution>;

class CudnnConvolutionPlan final : public ConvolutionPlan {
 public:
  // `handle` is null inside for a GPU that this machine does not have: then the plan cannot run.
  CudnnConvolutionPlan(std::shared_ptr<const cudnn::Handle> handle, BuiltPointer built);

  std::size_t workspace_bytes() const override { return cudnn::workspace_bytes(built_->plan); }
  const cudnn::EngineConfiguration& configuration() const { return built_->configuration; }

  void run(const ConvolutionOperands& operands, void* workspace, cudaStream_t stream) override;

 private:
  void bind(const ConvolutionOperands& operands, void* workspace);

  std::shared_ptr<const cudnn::Handle> handle_;
  BuiltPointer built_;
  std::vector<std::int64_t> ids_;
  std::optional<cudnn::Descriptor> pack_;
  std::vector<void*> addresses_;  // the operands' and the workspace's
};

// Finds and builds a GPU's engines that compute convolutions.
class ConvolutionEngines {
 public:
  // `handle`: null if the GPU is not on this machine. Then plans can be built, but not run.
  ConvolutionEngines(cudnn::Handle handle, cudnn::Descriptor device)
      : handle_(std::make_shared<cudnn::Handle>(std::move(handle))), device_(std::move(device)) {}

  bool can_run() const { return *handle_ != nullptr; }

  // Returns up to `most` usable plans, probably the fastest first. Throws Error if there is none.
  std::vector<BuiltPointer> usable(const ConvolutionProblem& problem, std::size_t most) const;

  // Throws Error if the engine does not support the problem or has an objection().
  BuiltPointer build(const ConvolutionProblem& problem, const cudnn::Choice& choice) const;

  std::unique_ptr<CudnnConvolutionPlan> plan(BuiltPointer built) const {
    return std::make_unique<CudnnConvolutionPlan>(handle_, std::move(built));
  }

  // Returns the plan for a problem with wide weights (weight_product.h). Throws Error if the GPU is not on this
  // machine.
  std::unique_ptr<ConvolutionPlan> plan_product(const ConvolutionProblem& problem);

 private:
  BuiltPointer build(const ConvolutionProblem& problem, std::shared_ptr<const cudnn::Graph> graph,
                     cudnn::EngineConfiguration configuration) const;

  std::shared_ptr<const cudnn::Handle> handle_;
  cudnn::Descriptor device_;
  std::unique_ptr<MatmulPlanner> matmuls_;  // null until needed
};

}  // namespace annulus::cuda
