#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

// The terms for MultiLabelCrossEntropy.
struct BinaryTerms {
  // -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) = log(1 + exp(x)) - t x, without overflow.
  static double loss(double x, double t) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))) - t * x; }
  static float gradient(float x, float t) { return 1 / (1 + std::exp(-x)) - t; }
  static double measure(std::span<const float> logits, std::span<const float> targets) {
    return std::ranges::equal(logits, targets, [](float x, float t) { return (x > 0) == (t > 0.5f); });
  }
};

// The terms for MeanSquaredError.
struct SquaredTerms {
  static double loss(double x, double t) { return (x - t) * (x - t); }
  static float gradient(float x, float t) { return 2 * (x - t); }
  static double measure(std::span<const float> values, std::span<const float> targets) {
    const auto error = [](float x, float t) { return std::abs(double{x} - double{t}); };
    return std::transform_reduce(values.begin(), values.end(), targets.begin(), 0.0, std::plus{}, error) /
           static_cast<double>(values.size());
  }
};

// A loss that compares values with targets in the same shape: the mean over terms. Samples are computed in parallel
// and summed in order, so that the result does not depend on the thread count.
template <class Terms>
class TargetLossOp : public Op {
 public:
  TargetLossOp(const Shape& values, Mode mode)
      : mode_(mode), batch_(values[0]), width_(values[1]), losses_(batch_), measures_(batch_) {
    info_.output = spec({2}, plain_layout({2}));
    info_.parameters = {spec({2}, plain_layout({2}))};
  }

  void bind(const Bindings& bindings) override {
    values_ = floats(bindings.inputs[0]);
    targets_ = floats(bindings.inputs[1]);
    sums_ = floats(bindings.output);
    if (mode_ != Mode::training) return;
    gradient_ = floats(bindings.input_gradients[0]);
    metrics_ = floats(bindings.parameter_gradients[0]);
  }

  void forward() override {
#pragma omp parallel for schedule(static) if (batch_ * width_ >= 4096)
    for (std::size_t sample = 0; sample < batch_; ++sample) {
      const std::span<const float> values = values_.subspan(sample * width_, width_);
      const std::span<const float> targets = targets_.subspan(sample * width_, width_);
      losses_[sample] =
          std::transform_reduce(values.begin(), values.end(), targets.begin(), 0.0, std::plus{}, Terms::loss) /
          static_cast<double>(width_);
      measures_[sample] = Terms::measure(values, targets);
    }
    sums_[0] = static_cast<float>(std::accumulate(losses_.begin(), losses_.end(), 0.0));
    sums_[1] = static_cast<float>(std::accumulate(measures_.begin(), measures_.end(), 0.0));
  }

  void backward(float sample_weight) override {
    const float each = sample_weight / static_cast<float>(width_);
#pragma omp parallel for schedule(static) if (batch_ * width_ >= 4096)
    for (std::size_t i = 0; i < batch_ * width_; ++i) gradient_[i] = each * Terms::gradient(values_[i], targets_[i]);
    metrics_[0] = sums_[0] * sample_weight;
    metrics_[1] = sums_[1] * sample_weight;
  }

 private:
  Mode mode_;
  std::size_t batch_, width_;
  std::vector<double> losses_, measures_;  // each sample's
  std::span<const float> values_, targets_;
  std::span<float> sums_, gradient_, metrics_;
};

}  // namespace

std::unique_ptr<Op> plan(const MultiLabelCrossEntropy&, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<TargetLossOp<BinaryTerms>>(inputs[0].shape, mode);
}

std::unique_ptr<Op> plan(const MeanSquaredError&, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<TargetLossOp<SquaredTerms>>(inputs[0].shape, mode);
}

}  // namespace annulus::cpu
