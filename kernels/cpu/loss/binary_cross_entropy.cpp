#include <algorithm>
#include <cmath>

#include "kernels/cpu/loss/class_loss_op.h"

namespace annulus::cpu {
namespace {

class BinaryCrossEntropyOp : public ClassLossOp {
 public:
  BinaryCrossEntropyOp(const BinaryCrossEntropy& operation, const Specs& inputs, Mode mode)
      : ClassLossOp(operation, inputs, mode) {}

 private:
  // -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) = log(1 + exp(x)) - t x, without overflow.
  double sample_loss(std::size_t, std::span<const float> logits, const ClassLabels::Target& target) override {
    double loss = 0;
    for (std::size_t c = 0; c < classes(); ++c) {
      const double logit = logits[c];
      loss += std::max(logit, 0.0) + std::log1p(std::exp(-std::abs(logit))) - double{probability(target, c)} * logit;
    }
    return double{target.weight} * loss / static_cast<double>(classes());
  }

  // d(mean loss) / d(logit) = sample's weight * (sigmoid(logit) - target probability) / (classes * global batch).
  void write_gradient(std::size_t, std::span<const float> logits, const ClassLabels::Target& target, float weight,
                      std::span<float> gradient) override {
    const float each = weight / static_cast<float>(classes());
    for (std::size_t c = 0; c < classes(); ++c)
      gradient[c] = each * (1 / (1 + std::exp(-logits[c])) - probability(target, c));
  }

  // Returns a class's target probability.
  float probability(const ClassLabels::Target& target, std::size_t c) const {
    const float share = (c == target.label ? target.share : 0) + (c == target.other ? 1 - target.share : 0);
    return (1 - smoothing()) * share + smoothing() / static_cast<float>(classes());
  }
};

}  // namespace

std::unique_ptr<Op> plan(const BinaryCrossEntropy& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<BinaryCrossEntropyOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
