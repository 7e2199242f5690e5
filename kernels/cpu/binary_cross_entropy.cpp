#include <cmath>

#include "kernels/cpu/class_labels.h"
#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/operations.h"

namespace annulus::cpu {
namespace {

class BinaryCrossEntropyOp : public Op {
 public:
  BinaryCrossEntropyOp(const BinaryCrossEntropy& operation, const Specs& inputs, Mode mode)
      : mode_(mode),
        labels_(inputs[1], mode, operation.smoothing, operation.class_weights),
        batch_(inputs[0].shape[0]),
        classes_(inputs[0].shape[1]),
        losses_(batch_),
        larger_(batch_) {
    info_.output = spec({3}, plain_layout({3}));
    info_.parameters = {spec({2}, plain_layout({2}))};
  }

  void bind(const Bindings& bindings) override {
    logits_ = floats(bindings.inputs[0]).data();
    labels_.bind(bindings.inputs[1]);
    sums_ = floats(bindings.output);
    if (mode_ == Mode::inference) return;
    gradient_ = floats(bindings.input_gradients[0]).data();
    metrics_ = floats(bindings.parameter_gradients[0]).data();
  }

  void forward() override {
#pragma omp parallel for schedule(static) if (batch_ * classes_ >= 4096)
    for (std::size_t sample = 0; sample < batch_; ++sample) forward_sample(sample);
    sum_samples(losses_, larger_, sums_);
  }

  // d(mean loss) / d(logit) = sample's weight * (sigmoid(logit) - target probability) / (classes * global batch).
  void backward(float sample_weight) override {
#pragma omp parallel for schedule(static) if (batch_ * classes_ >= 4096)
    for (std::size_t sample = 0; sample < batch_; ++sample) {
      const ClassLabels::Target target = labels_.target(sample);
      const float weight = sample_weight * target.weight / static_cast<float>(classes_);
      const std::size_t first = sample * classes_;
      for (std::size_t c = 0; c < classes_; ++c)
        gradient_[first + c] = weight * (1 / (1 + std::exp(-logits_[first + c])) - probability(target, c));
    }
    metrics_[0] = sums_[0] * sample_weight;
    metrics_[1] = sums_[1] * sample_weight;
  }

 private:
  // -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) = log(1 + exp(x)) - t x, without overflow.
  void forward_sample(std::size_t sample) {
    const std::span logits(logits_ + sample * classes_, classes_);
    const ClassLabels::Target target = labels_.target(sample);
    double loss = 0;
    for (std::size_t c = 0; c < classes_; ++c) {
      const double logit = logits[c];
      loss += std::max(logit, 0.0) + std::log1p(std::exp(-std::abs(logit))) - double{probability(target, c)} * logit;
    }
    losses_[sample] = double{target.weight} * loss / static_cast<double>(classes_);
    larger_[sample] = count_larger(logits, target.label);
  }

  // The target probability of a class.
  float probability(const ClassLabels::Target& target, std::size_t c) const {
    const float share = (c == target.label ? target.share : 0) + (c == target.other ? 1 - target.share : 0);
    return (1 - labels_.smoothing()) * share + labels_.smoothing() / static_cast<float>(classes_);
  }

  Mode mode_;
  ClassLabels labels_;
  std::size_t batch_, classes_;
  std::vector<double> losses_;
  std::vector<std::size_t> larger_;  // of each sample: number of logits that rank above the label's
  const float* logits_ = nullptr;
  std::span<float> sums_;
  float* gradient_ = nullptr;
  float* metrics_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const BinaryCrossEntropy& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<BinaryCrossEntropyOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
