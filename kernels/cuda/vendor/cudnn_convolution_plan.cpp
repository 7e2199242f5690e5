#include "kernels/cuda/vendor/cudnn_convolution_plan.h"

#include <fmt/ranges.h>

#include <set>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/vendor/cudnn_convolution_graph.h"
#include "kernels/cuda/vendor/weight_product.h"

namespace annulus::cuda {
namespace {

using cudnn::Descriptor, cudnn::EngineConfiguration;

// A device's operations share a single workspace, as large as any operation needs. Engines that need more than this
// limit are rarely the fastest, and not worth a smaller batch.
constexpr std::size_t kWorkspaceLimit = std::size_t{1} << 30;

}  // namespace

CudnnConvolutionPlan::CudnnConvolutionPlan(std::shared_ptr<const cudnn::Handle> handle, BuiltPointer built)
    : handle_(std::move(handle)), built_(std::move(built)) {
  for (const Operand operand : operands(built_->problem)) ids_.push_back(operand);
  addresses_.resize(ids_.size() + 1);
}

void CudnnConvolutionPlan::run(const ConvolutionOperands& operands, void* workspace, cudaStream_t stream) {
  if (!*handle_) fail("a {} that was planned for another machine's GPU cannot run", to_string(built_->problem));
  try {
    bind(operands, workspace);
    cudnn::check(cudnnSetStream(handle_->get(), stream));
    cudnn::check(cudnnBackendExecute(handle_->get(), built_->plan.handle(), pack_->handle()));
  } catch (const Error& error) {
    fail("a {} does not run: {}", to_string(built_->problem), error.what());
  }
}

void CudnnConvolutionPlan::bind(const ConvolutionOperands& operands, void* workspace) {
  bool same = pack_.has_value();
  const auto set = [&](std::size_t i, void* address) {
    same = std::exchange(addresses_[i], address) == address && same;
  };
  const auto all = addresses(operands);
  for (std::size_t i = 0; i < ids_.size(); ++i) set(i, all[static_cast<std::size_t>(ids_[i] - kInput)]);
  set(ids_.size(), workspace);
  if (same) return;  // addresses are the same in every step
  pack_.reset();     // if the next line throws
  pack_.emplace(cudnn::variant_pack(ids_, std::span(addresses_).first(ids_.size()), workspace));
}

std::vector<BuiltPointer> ConvolutionEngines::usable(const ConvolutionProblem& problem, std::size_t most) const {
  const auto graph = std::make_shared<const cudnn::Graph>(convolution_graph(problem));
  std::vector<BuiltPointer> all;
  std::set<std::string> objections;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      objections.insert(error.what());
    }
  };
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {  // mode B gives the same answers as A
    attempt([&] {
      for (EngineConfiguration& configuration : cudnn::configurations(*graph, device_, mode))
        if (all.size() < most) attempt([&] { all.push_back(build(problem, graph, std::move(configuration))); });
    });
    if (!all.empty()) return all;
  }
  fail("cuDNN {} has no plan for a {}: choose another precision or batch size ({})", cudnnGetVersion(),
       to_string(problem), objections.empty() ? "no engine found" : fmt::format("{}", fmt::join(objections, "; ")));
}

BuiltPointer ConvolutionEngines::build(const ConvolutionProblem& problem, const cudnn::Choice& choice) const {
  const auto graph = std::make_shared<const cudnn::Graph>(convolution_graph(problem));
  return build(problem, graph, cudnn::configuration(*graph, device_, choice));
}

BuiltPointer ConvolutionEngines::build(const ConvolutionProblem& problem, std::shared_ptr<const cudnn::Graph> graph,
                                       EngineConfiguration configuration) const {
  const auto engine = configuration.choice.engine;
  if (const std::string why = cudnn::objection(configuration, problem.precision); !why.empty())
    fail("engine {}: {}", engine, why);
  Descriptor plan = cudnn::execution_plan(configuration, device_, *handle_ ? handle_->get() : nullptr);
  const std::size_t bytes = cudnn::workspace_bytes(plan);
  if (bytes > kWorkspaceLimit) fail("engine {}: it needs a workspace of {} bytes", engine, bytes);
  return std::make_shared<const BuiltConvolution>(
      BuiltConvolution{problem, std::move(graph), std::move(configuration), std::move(plan)});
}

std::unique_ptr<ConvolutionPlan> ConvolutionEngines::plan_product(const ConvolutionProblem& problem) {
  if (!can_run()) fail("a {} can be planned only for a GPU that is on this machine", to_string(problem));
  if (!matmuls_) matmuls_ = make_matmul_planner();
  return plan_weight_product(problem, *matmuls_);
}

}  // namespace annulus::cuda
