#pragma once

#include <vector>

#include "kernels/cpu/plan/class_labels.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {

// A loss over classes: computes samples in parallel and sums them in order.
class ClassLossOp : public Op {
 public:
  void bind(const Bindings& bindings) final;
  void forward() final;
  void backward(float sample_weight) final;

 protected:
  // `operation`: a loss with smoothing and class weights.
  template <class Loss>
  ClassLossOp(const Loss& operation, const Specs& inputs, Mode mode)
      : ClassLossOp(ClassLabels(inputs[1], mode, operation.smoothing, operation.class_weights), inputs[0].shape, mode) {
  }

  // Returns a sample's loss, multiplied by the sample's weight. May store what the gradient needs.
  virtual double sample_loss(std::size_t sample, std::span<const float> logits, const ClassLabels::Target& target) = 0;
  // Writes the gradient with respect to a sample's logits. `weight`: the sample's weight / global batch.
  virtual void write_gradient(std::size_t sample, std::span<const float> logits, const ClassLabels::Target& target,
                              float weight, std::span<float> gradient) = 0;

  bool training() const { return mode_ == Mode::training; }
  std::size_t batch() const { return batch_; }
  std::size_t classes() const { return classes_; }
  float smoothing() const { return labels_.smoothing(); }

 private:
  ClassLossOp(const ClassLabels& labels, const Shape& logits, Mode mode);

  std::span<const float> logits(std::size_t sample) const { return {logits_ + sample * classes_, classes_}; }

  Mode mode_;
  ClassLabels labels_;
  std::size_t batch_, classes_;
  std::vector<double> losses_;
  std::vector<std::size_t> larger_;  // for each sample: how many logits rank above the label's
  const float* logits_ = nullptr;
  std::span<float> sums_;
  float* gradient_ = nullptr;
  float* metrics_ = nullptr;
};

}  // namespace annulus::cpu
