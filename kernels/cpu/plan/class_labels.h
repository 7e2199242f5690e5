#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"

namespace annulus::cpu {

// The labels for a loss over classes, {batch} or {batch, 3} (each a MixedLabel), with the classes' weights.
class ClassLabels {
 public:
  // `smoothing` and `class_weights` apply to training only; see SoftmaxCrossEntropy.
  ClassLabels(const TensorSpec& labels, Mode mode, float smoothing, const std::vector<float>& class_weights);

  void bind(DeviceView labels) { labels_ = reinterpret_cast<const std::int32_t*>(labels.address); }

  float smoothing() const { return smoothing_; }

  // A sample's label, that label's share of the target probability, the label with the rest, and the loss's weight.
  struct Target {
    std::size_t label, other;
    float share, weight = 1;
  };
  Target target(std::size_t sample) const;

 private:
  bool mixed_;
  float smoothing_;
  std::vector<float> class_weights_;
  const std::int32_t* labels_ = nullptr;
};

// Returns how many logits rank above the label's: among equal logits the first ranks higher, NaN above any number.
std::size_t count_larger(std::span<const float> logits, std::size_t label);

// Writes the output of a loss over classes: sums the losses and the hits, in the samples' order, so that the result
// does not depend on the thread count. `larger`: count_larger() for each sample.
void sum_samples(std::span<const double> losses, std::span<const std::size_t> larger, std::span<float> sums);

}  // namespace annulus::cpu
