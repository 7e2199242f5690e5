#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/mixed_label.h"
#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/plan/operations.h"

// What kernels for losses over classes share.
namespace annulus::cuda {

// All samples' labels, mixed or not, and the classes' weights, if there are any.
struct Labels {
  const std::int32_t* plain;
  const MixedLabel* mixed;
  const float* weights;
};

// A sample's label, that label's share of the target probability, the label with the rest, and the loss's weight.
struct Target {
  std::uint32_t label, other;
  float share, weight;
};
__device__ inline Target target_of(const Labels& labels, std::size_t sample) {
  Target target{0, 0, 1, 1};
  if (labels.mixed == nullptr) {
    target.label = target.other = static_cast<std::uint32_t>(labels.plain[sample]);
  } else {
    const MixedLabel& mixed = labels.mixed[sample];
    target.label = static_cast<std::uint32_t>(mixed.label);
    target.other = static_cast<std::uint32_t>(mixed.other);
    target.share = static_cast<float>(mixed.share) / MixedLabel::kWhole;
  }
  if (labels.weights == nullptr) return target;
  const float weight = target.share * labels.weights[target.label];
  target.weight = weight + (1 - target.share) * labels.weights[target.other];
  target.share = weight / target.weight;
  return target;
}

// Returns a class's target probability.
__device__ inline float target_probability(const Target& target, std::uint32_t c, float smoothing,
                                           std::uint32_t classes) {
  const float share = (1 - smoothing) * target.share, others = (1 - smoothing) * (1 - target.share);
  return smoothing / static_cast<float>(classes) + (c == target.label ? share : 0) + (c == target.other ? others : 0);
}

// Whether a logit ranks above the label's: among equal logits the first ranks higher, and NaN ranks above any.
__device__ inline bool ranks_above(float logit, std::uint32_t c, float of_label, std::uint32_t label) {
  return c < label ? !(logit < of_label) : !(logit <= of_label);
}

// Calls body(logit, class) for the thread's share of a row's logits.
template <class T, class Body>
__device__ void for_each_logit(const T* logits, std::uint32_t classes, const Body& body) {
  for (std::uint32_t first = threadIdx.y * kLanes<T>; first < classes; first += blockDim.y * kLanes<T>) {
    const Vector<T> values = load(logits, first / kLanes<T>);
    for (unsigned k = 0; k < kLanes<T>; ++k)
      if (first + k < classes) body(values.at[k], first + k);
  }
}

// An operation's labels, as kernels take them.
class LabelInput {
 public:
  // `smoothing` and `class_weights` apply to training only; see SoftmaxCrossEntropy.
  LabelInput(const TensorSpec& labels, Mode mode, float smoothing, const std::vector<float>& class_weights)
      : mixed_(labels.shape.size() == 2), smoothing_(mode == Mode::training ? smoothing : 0) {
    if (mode == Mode::training && !class_weights.empty())
      class_weights_ = to_device(std::as_bytes(std::span(class_weights)));
  }

  float smoothing() const { return smoothing_; }
  Labels of(DeviceView labels) const {
    const auto* weights = data<float>(class_weights_.view());
    if (mixed_) return {nullptr, data<MixedLabel>(labels), weights};
    return {data<std::int32_t>(labels), nullptr, weights};
  }

 private:
  bool mixed_;
  float smoothing_;
  Buffer class_weights_;  // none if all are 1
};

// A sample's loss, and how many logits rank above the label's.
struct SampleLoss {
  float loss, larger;
};

// Adds up a batch's losses and hits.
void add_up_samples(const SampleLoss* samples, std::size_t batch, float* sums, cudaStream_t lane);

}  // namespace annulus::cuda
