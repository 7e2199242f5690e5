#include <algorithm>
#include <cmath>

#include "kernels/cpu/class_labels.h"
#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/operations.h"

namespace annulus::cpu {
namespace {

class SoftmaxCrossEntropyOp : public Op {
 public:
  SoftmaxCrossEntropyOp(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode)
      : mode_(mode),
        labels_(inputs[1], mode, operation.smoothing, operation.class_weights),
        batch_(inputs[0].shape[0]),
        classes_(inputs[0].shape[1]),
        losses_(batch_),
        larger_(batch_) {
    info_.output = spec({3}, plain_layout({3}));
    info_.inputs.assign(inputs.size(), {.backward_reads = false});  // forward stores the probabilities instead
    info_.parameters = {spec({2}, plain_layout({2}))};
    if (mode == Mode::training) probabilities_.resize(batch_ * classes_);
  }

  void bind(const Bindings& bindings) override {
    logits_ = floats(bindings.inputs[0]).data();
    labels_.bind(bindings.inputs[1]);
    sums_ = floats(bindings.output);
    if (mode_ == Mode::inference) return;
    logits_gradient_ = floats(bindings.input_gradients[0]).data();
    metrics_ = floats(bindings.parameter_gradients[0]).data();
  }

  void forward() override {
#pragma omp parallel for schedule(static) if (batch_ * classes_ >= 4096)
    for (std::size_t sample = 0; sample < batch_; ++sample) forward_sample(sample);
    sum_samples(losses_, larger_, sums_);
  }

  // d(mean loss) / d(logits) = sample's weight * (probabilities - target probabilities) / global batch.
  void backward(float sample_weight) override {
#pragma omp parallel for schedule(static) if (batch_ * classes_ >= 4096)
    for (std::size_t sample = 0; sample < batch_; ++sample) {
      const ClassLabels::Target target = labels_.target(sample);
      write_gradient(sample, target, sample_weight * target.weight);
    }
    metrics_[0] = sums_[0] * sample_weight;
    metrics_[1] = sums_[1] * sample_weight;
  }

 private:
  void forward_sample(std::size_t sample) {
    const std::span logits(logits_ + sample * classes_, classes_);
    const ClassLabels::Target target = labels_.target(sample);
    const float largest = *std::max_element(logits.begin(), logits.end());
    // Shifted by the largest logit, so that no exponential overflows.
    double total = 0;
    for (const float logit : logits) total += std::exp(logit - largest);
    losses_[sample] = double{target.weight} * (std::log(total) - smoothed(logits, target, largest));
    larger_[sample] = count_larger(logits, target.label);
    if (mode_ == Mode::inference) return;
    for (std::size_t c = 0; c < classes_; ++c)
      probabilities_[sample * classes_ + c] = std::exp(logits[c] - largest) / static_cast<float>(total);
  }

  void write_gradient(std::size_t sample, const ClassLabels::Target& target, float weight) {
    const std::span probabilities = std::span(probabilities_).subspan(sample * classes_, classes_);
    float* const gradient = logits_gradient_ + sample * classes_;
    const float everywhere = weight * labels_.smoothing() / static_cast<float>(classes_);
    for (std::size_t c = 0; c < classes_; ++c) gradient[c] = weight * probabilities[c] - everywhere;
    gradient[target.label] -= weight * (1 - labels_.smoothing()) * target.share;
    gradient[target.other] -= weight * (1 - labels_.smoothing()) * (1 - target.share);
  }

  // Returns the label's logit relative to the largest, after mixing and label smoothing.
  double smoothed(std::span<const float> logits, const ClassLabels::Target& target, float largest) const {
    const auto relative = [&](std::size_t label) { return static_cast<double>(logits[label] - largest); };
    double own = relative(target.label);
    if (target.share < 1) own += (1 - double{target.share}) * (relative(target.other) - own);
    if (labels_.smoothing() == 0) return own;  // the logit of an impossible class may be infinite
    double sum = 0;
    for (const float logit : logits) sum += static_cast<double>(logit - largest);
    return own + labels_.smoothing() * (sum / static_cast<double>(classes_) - own);
  }

  Mode mode_;
  ClassLabels labels_;
  std::size_t batch_, classes_;
  std::vector<double> losses_;
  std::vector<std::size_t> larger_;  // of each sample: number of logits that rank above the label's
  std::vector<float> probabilities_;
  const float* logits_ = nullptr;
  std::span<float> sums_;
  float* logits_gradient_ = nullptr;
  float* metrics_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<SoftmaxCrossEntropyOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
