#include <algorithm>
#include <cmath>

#include "kernels/cpu/loss/class_loss_op.h"

namespace annulus::cpu {
namespace {

class SoftmaxCrossEntropyOp : public ClassLossOp {
 public:
  SoftmaxCrossEntropyOp(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode)
      : ClassLossOp(operation, inputs, mode) {
    info_.inputs.assign(inputs.size(), {.backward_reads = false});  // forward stores the probabilities instead
    if (training()) probabilities_.resize(batch() * classes());
  }

 private:
  double sample_loss(std::size_t sample, std::span<const float> logits, const ClassLabels::Target& target) override {
    const float largest = *std::max_element(logits.begin(), logits.end());
    // Shifted by the largest logit, so that no exponential overflows.
    double total = 0;
    for (const float logit : logits) total += std::exp(logit - largest);
    if (training())
      for (std::size_t c = 0; c < classes(); ++c)
        probabilities_[sample * classes() + c] = std::exp(logits[c] - largest) / static_cast<float>(total);
    return double{target.weight} * (std::log(total) - smoothed(logits, target, largest));
  }

  // d(mean loss) / d(logits) = sample's weight * (probabilities - target probabilities) / global batch.
  void write_gradient(std::size_t sample, std::span<const float>, const ClassLabels::Target& target, float weight,
                      std::span<float> gradient) override {
    const std::span probabilities = std::span(probabilities_).subspan(sample * classes(), classes());
    const float everywhere = weight * smoothing() / static_cast<float>(classes());
    for (std::size_t c = 0; c < classes(); ++c) gradient[c] = weight * probabilities[c] - everywhere;
    gradient[target.label] -= weight * (1 - smoothing()) * target.share;
    gradient[target.other] -= weight * (1 - smoothing()) * (1 - target.share);
  }

  // Returns the label's logit relative to the largest, after mixing and label smoothing.
  double smoothed(std::span<const float> logits, const ClassLabels::Target& target, float largest) const {
    const auto relative = [&](std::size_t label) { return static_cast<double>(logits[label] - largest); };
    double own = relative(target.label);
    if (target.share < 1) own += (1 - double{target.share}) * (relative(target.other) - own);
    if (smoothing() == 0) return own;  // an impossible class may have an infinite logit
    double sum = 0;
    for (const float logit : logits) sum += static_cast<double>(logit - largest);
    return own + smoothing() * (sum / static_cast<double>(classes()) - own);
  }

  std::vector<float> probabilities_;
};

}  // namespace

std::unique_ptr<Op> plan(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<SoftmaxCrossEntropyOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
