#include "kernels/cpu/plan/class_labels.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/mixed_label.h"

namespace annulus::cpu {

ClassLabels::ClassLabels(const TensorSpec& labels, Mode mode, float smoothing, const std::vector<float>& class_weights)
    : mixed_(labels.shape.size() == 2),
      smoothing_(mode == Mode::training ? smoothing : 0),
      class_weights_(mode == Mode::training ? class_weights : std::vector<float>{}) {}

ClassLabels::Target ClassLabels::target(std::size_t sample) const {
  MixedLabel mixed{labels_[sample], labels_[sample], MixedLabel::kWhole};
  if (mixed_) mixed = reinterpret_cast<const MixedLabel*>(labels_)[sample];
  Target target{static_cast<std::size_t>(mixed.label), static_cast<std::size_t>(mixed.other), mixed.share_of_label()};
  if (class_weights_.empty()) return target;
  const float weight = target.share * class_weights_[target.label];
  target.weight = weight + (1 - target.share) * class_weights_[target.other];
  target.share = weight / target.weight;
  return target;
}

std::size_t count_larger(std::span<const float> logits, std::size_t label) {
  const float own = logits[label];
  const auto larger = [=](float logit) { return !(logit <= own); };
  const auto larger_or_equal = [=](float logit) { return !(logit < own); };
  return static_cast<std::size_t>(std::ranges::count_if(logits.first(label), larger_or_equal) +
                                  std::ranges::count_if(logits.subspan(label), larger));
}

void sum_samples(std::span<const double> losses, std::span<const std::size_t> larger, std::span<float> sums) {
  const auto count_below = [&](std::size_t rank) {
    return static_cast<float>(std::ranges::count_if(larger, [=](std::size_t count) { return count < rank; }));
  };
  sums[0] = static_cast<float>(std::accumulate(losses.begin(), losses.end(), 0.0));
  sums[1] = count_below(1);
  sums[2] = count_below(SoftmaxCrossEntropy::kTop);
}

}  // namespace annulus::cpu
