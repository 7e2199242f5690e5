#include "src/step/gradient_guard.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace annulus {
namespace {

// An exponent of ones. Without a branch for each value the loop is vectorized.
bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t found = 0;
  for (const float value : values) found |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
  return found == 0;
}

class FiniteGuard final : public GradientGuard {
 public:
  FiniteGuard(Model& model, JudgeGradients judge)
      : model_(model), judge_(std::move(judge)), parameters_(model.parameters().updated()) {}

  void begin_part() override { checked_ = 0; }
  void ready(std::size_t gradients) override;
  bool accepts() override { return judge_(std::exchange(not_finite_, nullptr)); }

 private:
  std::span<const float> values(DeviceView gradients);

  Model& model_;
  const JudgeGradients judge_;
  const std::vector<Parameter> parameters_;
  std::vector<float> host_;  // a copy, if the device has memory of its own
  std::size_t checked_ = 0;  // floats of the current part
  const Parameter* not_finite_ = nullptr;
};

void FiniteGuard::ready(std::size_t gradients) {
  const std::size_t begin = std::exchange(checked_, gradients) * sizeof(float), end = gradients * sizeof(float);
  if (not_finite_ != nullptr || all_finite(values(model_.parameters().gradients().slice(begin, end - begin)))) return;
  const auto is_not_finite = [&](const Parameter& p) {
    return p.offset < end && p.offset + p.bytes > begin && !all_finite(values(model_.parameters().gradient(p)));
  };
  const auto found = std::ranges::find_if(parameters_, is_not_finite);
  if (found != parameters_.end()) not_finite_ = &*found;
}

std::span<const float> FiniteGuard::values(DeviceView gradients) {
  const std::size_t count = gradients.bytes / sizeof(float);
  if (model_.device().info().shares_host_memory) return {reinterpret_cast<const float*>(gradients.address), count};
  host_.resize(std::max(host_.size(), count));
  model_.device().download(gradients, std::as_writable_bytes(std::span(host_).first(count)));
  return std::span(host_).first(count);
}

}  // namespace

std::unique_ptr<GradientGuard> make_finite_guard(Model& model, JudgeGradients judge) {
  return std::make_unique<FiniteGuard>(model, std::move(judge));
}

}  // namespace annulus
