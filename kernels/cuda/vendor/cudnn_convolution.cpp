#include "kernels/cuda/vendor/cudnn_convolution.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/cudnn_convolution_plan.h"
#include "kernels/cuda/vendor/cudnn_convolution_tuning.h"
#include "kernels/cuda/vendor/cudnn_tuning.h"
#include "kernels/cuda/vendor/stopwatch.h"

namespace annulus::cuda {
namespace {

// Chooses plans by the tuner, if any, else by the library's heuristics.
class Planner final : public ConvolutionPlanner {
 public:
  // `name`: the GPU's.
  Planner(cudnn::Handle handle, cudnn::Descriptor device, const Tuning& tuning, const std::string& name,
          std::shared_ptr<TuningBudget> budget)
      : engines_(std::move(handle), std::move(device)) {
    if (tuning.file.empty()) return;
    if (!budget) budget = std::make_shared<TuningBudget>(tuning);
    tuner_.emplace(tuning, fmt::format("{}, cuDNN {}", name, cudnnGetVersion()), engines_, std::move(budget));
  }

  std::unique_ptr<ConvolutionPlan> plan(const ConvolutionProblem& problem) override {
    require_sound(problem);
    if (problem.has_wide_weights()) return engines_.plan_product(problem);
    BuiltPointer& built = built_[to_string(problem)];
    if (!built) built = tuner_ ? tuner_->fastest(problem) : engines_.usable(problem, 1).front();
    return engines_.plan(built);
  }

  ConvolutionPasses choose_passes(const ConvolutionProblem& layer, const NormsBeside& norms) override {
    return tuner_ ? tuner_->choose_passes(layer, norms) : ConvolutionPasses{};
  }

 private:
  ConvolutionEngines engines_;
  std::optional<ConvolutionTuner> tuner_;
  std::map<std::string, BuiltPointer> built_;  // a network has many equal layers
};

}  // namespace

std::unique_ptr<ConvolutionPlanner> make_convolution_planner(const Tuning& tuning,
                                                             std::shared_ptr<TuningBudget> budget) {
  cudnn::Handle handle = cudnn::make_handle();
  cudnn::Descriptor device = cudnn::device_properties(handle.get());
  return std::make_unique<Planner>(std::move(handle), std::move(device), tuning, current_device_name(),
                                   std::move(budget));
}

std::vector<std::unique_ptr<ConvolutionPlan>> all_convolution_plans(const ConvolutionProblem& problem) {
  std::vector<std::unique_ptr<ConvolutionPlan>> all;
  if (problem.is_own()) {
    all.push_back(plan_own_product(problem));
    return all;
  }
  cudnn::Handle handle = cudnn::make_handle();
  cudnn::Descriptor device = cudnn::device_properties(handle.get());
  const ConvolutionEngines engines(std::move(handle), std::move(device));
  for (const BuiltPointer& built : engines.usable(problem, std::numeric_limits<std::size_t>::max()))
    all.push_back(engines.plan(built));
  return all;
}

std::unique_ptr<ConvolutionPlanner> make_convolution_planner_for(const std::string& device_properties_json,
                                                                 const Tuning& tuning,
                                                                 std::shared_ptr<TuningBudget> budget) {
  const auto json = nlohmann::json::parse(device_properties_json, nullptr, false);
  if (!json.is_object()) fail("the properties of the GPU to plan for are not a JSON object");
  return std::make_unique<Planner>(nullptr, cudnn::device_properties(device_properties_json), tuning,
                                   json.value("deviceName", "unknown GPU"), std::move(budget));
}

}  // namespace annulus::cuda
