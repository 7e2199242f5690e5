#include <algorithm>
#include <cmath>

#include "kernels/base/mixed_label.h"
#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/flat.h"
#include "kernels/cpu/operations.h"

namespace annulus::cpu {
namespace {

class SoftmaxCrossEntropyOp : public Op {
 public:
  SoftmaxCrossEntropyOp(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode)
      : mode_(mode),
        smoothing_(mode == Mode::training ? operation.smoothing : 0),
        batch_(inputs[0].shape[0]),
        classes_(inputs[0].shape[1]),
        mixed_(inputs[1].shape.size() == 2),
        losses_(batch_),
        larger_(batch_) {
    info_.output = spec({3}, plain_layout({3}));
    info_.inputs.assign(inputs.size(), {.backward_reads = false});  // forward stores the probabilities instead
    info_.parameters = {spec({2}, plain_layout({2}))};
    if (mode == Mode::training) probabilities_.resize(batch_ * classes_);
  }

  void bind(const Bindings& bindings) override {
    logits_ = floats(bindings.inputs[0]).data();
    const void* const labels = bindings.inputs[1].address;
    if (mixed_)
      mixed_labels_ = static_cast<const MixedLabel*>(labels);
    else
      labels_ = static_cast<const std::int32_t*>(labels);
    sums_ = floats(bindings.output).data();
    if (mode_ == Mode::inference) return;
    logits_gradient_ = floats(bindings.input_gradients[0]).data();
    metrics_ = floats(bindings.parameter_gradients[0]).data();
  }

  void forward() override {
#pragma omp parallel for schedule(static) if (batch_ * classes_ >= 4096)
    for (std::size_t sample = 0; sample < batch_; ++sample) forward_sample(sample);
    // Summed in the samples' order, independent of the number of threads.
    double loss = 0;
    for (std::size_t sample = 0; sample < batch_; ++sample) loss += losses_[sample];
    const auto count_below = [this](std::size_t rank) {
      return static_cast<float>(std::ranges::count_if(larger_, [=](std::size_t larger) { return larger < rank; }));
    };
    sums_[0] = static_cast<float>(loss);
    sums_[1] = count_below(1);
    sums_[2] = count_below(SoftmaxCrossEntropy::kTop);
  }

  // d(mean loss) / d(logits) = (probabilities - target probabilities) / global batch.
  void backward(float sample_weight) override {
    const std::span gradient(logits_gradient_, batch_ * classes_);
    scale(probabilities_, sample_weight, gradient);
    if (smoothing_ > 0)
      for (float& value : gradient) value -= sample_weight * smoothing_ / static_cast<float>(classes_);
    for (std::size_t sample = 0; sample < batch_; ++sample) {
      const MixedLabel target = target_of(sample);
      const float share = target.share_of_label();
      float* const row = gradient.data() + sample * classes_;
      row[target.label] -= sample_weight * (1 - smoothing_) * share;
      row[target.other] -= sample_weight * (1 - smoothing_) * (1 - share);
    }
    metrics_[0] = sums_[0] * sample_weight;
    metrics_[1] = sums_[1] * sample_weight;
  }

 private:
  void forward_sample(std::size_t sample) {
    const std::span logits(logits_ + sample * classes_, classes_);
    const MixedLabel target = target_of(sample);
    const float largest = *std::max_element(logits.begin(), logits.end());
    // Shifted by the largest logit, so that no exponential overflows.
    double total = 0;
    for (const float logit : logits) total += std::exp(logit - largest);
    losses_[sample] = std::log(total) - smoothed(logits, target, largest);
    larger_[sample] = count_larger(logits, static_cast<std::size_t>(target.label));
    if (mode_ == Mode::inference) return;
    for (std::size_t c = 0; c < classes_; ++c)
      probabilities_[sample * classes_ + c] = std::exp(logits[c] - largest) / static_cast<float>(total);
  }

  // Returns the number of logits that rank above the label's.
  static std::size_t count_larger(std::span<const float> logits, std::size_t label) {
    const float own = logits[label];
    const auto larger = [=](float logit) { return !(logit <= own); };
    const auto larger_or_equal = [=](float logit) { return !(logit < own); };
    return static_cast<std::size_t>(std::ranges::count_if(logits.first(label), larger_or_equal) +
                                    std::ranges::count_if(logits.subspan(label), larger));
  }

  MixedLabel target_of(std::size_t sample) const {
    return mixed_ ? mixed_labels_[sample] : MixedLabel{labels_[sample], labels_[sample], MixedLabel::kWhole};
  }

  // Returns the label's logit relative to the largest, after mixing and label smoothing.
  double smoothed(std::span<const float> logits, const MixedLabel& target, float largest) const {
    const auto relative = [&](std::int32_t label) {
      return static_cast<double>(logits[static_cast<std::size_t>(label)] - largest);
    };
    double own = relative(target.label);
    if (target.share < MixedLabel::kWhole)
      own += (1 - double{target.share_of_label()}) * (relative(target.other) - own);
    if (smoothing_ == 0) return own;  // the logit of an impossible class may be infinite
    double sum = 0;
    for (const float logit : logits) sum += static_cast<double>(logit - largest);
    return own + smoothing_ * (sum / static_cast<double>(classes_) - own);
  }

  Mode mode_;
  float smoothing_;
  std::size_t batch_, classes_;
  bool mixed_;
  std::vector<double> losses_;
  std::vector<std::size_t> larger_;  // of each sample: number of logits that rank above the label's
  std::vector<float> probabilities_;
  const float* logits_ = nullptr;
  const std::int32_t* labels_ = nullptr;      // if they are not mixed
  const MixedLabel* mixed_labels_ = nullptr;  // if they are
  float* sums_ = nullptr;
  float* logits_gradient_ = nullptr;
  float* metrics_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<SoftmaxCrossEntropyOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
