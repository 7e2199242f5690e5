#include "kernels/cpu/loss/class_loss_op.h"

namespace annulus::cpu {

ClassLossOp::ClassLossOp(const ClassLabels& labels, const Shape& logits, Mode mode)
    : mode_(mode), labels_(labels), batch_(logits[0]), classes_(logits[1]), losses_(batch_), larger_(batch_) {
  info_.output = spec({3}, plain_layout({3}));
  info_.parameters = {spec({2}, plain_layout({2}))};
}

void ClassLossOp::bind(const Bindings& bindings) {
  logits_ = floats(bindings.inputs[0]).data();
  labels_.bind(bindings.inputs[1]);
  sums_ = floats(bindings.output);
  if (!training()) return;
  gradient_ = floats(bindings.input_gradients[0]).data();
  metrics_ = floats(bindings.parameter_gradients[0]).data();
}

void ClassLossOp::forward() {
#pragma omp parallel for schedule(static) if (batch_ * classes_ >= 4096)
  for (std::size_t sample = 0; sample < batch_; ++sample) {
    const ClassLabels::Target target = labels_.target(sample);
    losses_[sample] = sample_loss(sample, logits(sample), target);
    larger_[sample] = count_larger(logits(sample), target.label);
  }
  sum_samples(losses_, larger_, sums_);
}

void ClassLossOp::backward(float sample_weight) {
#pragma omp parallel for schedule(static) if (batch_ * classes_ >= 4096)
  for (std::size_t sample = 0; sample < batch_; ++sample) {
    const ClassLabels::Target target = labels_.target(sample);
    write_gradient(sample, logits(sample), target, sample_weight * target.weight,
                   {gradient_ + sample * classes_, classes_});
  }
  metrics_[0] = sums_[0] * sample_weight;
  metrics_[1] = sums_[1] * sample_weight;
}

}  // namespace annulus::cpu
