#include "kernels/cuda/vendor/cudnn_convolution.h"

#include <fmt/format.h>

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
  Planner(cudnn::Handle handle, cudnn::Descriptor device, std::optional<ConvolutionTuning> tuning)
      : engines_(std::move(handle), std::move(device)) {
    if (tuning) tuner_.emplace(*std::move(tuning), engines_);
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

std::optional<ConvolutionTuning> open_tuning(const std::filesystem::path& file, const std::string& device) {
  if (file.empty()) return {};
  return ConvolutionTuning(file, fmt::format("{}, cuDNN {}", device, cudnnGetVersion()));
}

}  // namespace

std::unique_ptr<ConvolutionPlanner> make_convolution_planner(const std::filesystem::path& tuning) {
  cudnn::Handle handle = cudnn::make_handle();
  cudnn::Descriptor device = cudnn::device_properties(handle.get());
  return std::make_unique<Planner>(std::move(handle), std::move(device), open_tuning(tuning, current_device_name()));
}

std::unique_ptr<ConvolutionPlanner> make_convolution_planner_for(const std::string& device_properties_json,
                                                                 const std::filesystem::path& tuning) {
  const auto json = nlohmann::json::parse(device_properties_json, nullptr, false);
  if (!json.is_object()) fail("the properties of the GPU to plan for are not a JSON object");
  return std::make_unique<Planner>(nullptr, cudnn::device_properties(device_properties_json),
                                   open_tuning(tuning, json.value("deviceName", "unknown GPU")));
}

}  // namespace annulus::cuda
