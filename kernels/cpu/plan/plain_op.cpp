#include "kernels/cpu/plan/plain_op.h"

#include <algorithm>
#include <utility>

namespace annulus::cpu {

PlainOp::PlainOp(const Specs& inputs, const Shape& output) : inputs_(inputs) {
  info_.output = spec(output, plain_layout(output));
  info_.backward_reads_output = false;
  info_.skips_parameter_gradients = true;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    // For the values and for their gradient.
    info_.scratch_bytes += 2 * Scratch::bytes({Adapted::copy(desc(inputs[i]), plain(i))});
    for (std::string& name : Adapted::implementations(desc(inputs[i]), plain(i)))
      info_.implementations.push_back(std::move(name));
  }
}

void PlainOp::declare(const std::vector<ParameterDeclaration>& parameters) {
  for (const ParameterDeclaration& p : parameters) info_.parameters.push_back(spec(p.shape, plain_layout(p.shape)));
}

void PlainOp::need_scratch(std::size_t bytes) {
  info_.scratch_bytes += bytes - own_scratch_bytes_;
  own_scratch_bytes_ = bytes;
}

void PlainOp::bind(const Bindings& bindings) {
  bindings_ = bindings;
  own_scratch_ = bindings.scratch.slice(0, own_scratch_bytes_);
  Scratch rest(bindings.scratch.slice(own_scratch_bytes_, bindings.scratch.bytes - own_scratch_bytes_));
  adapted_values_.clear();
  adapted_gradients_.clear();
  values_.clear();
  gradients_.clear();
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    adapted_values_.emplace_back(desc(inputs_[i]), plain(i), bindings.inputs[i], rest);
    values_.push_back(floats(view(adapted_values_.back())).data());
    const bool wanted = i < bindings.input_gradients.size() && bindings.input_gradients[i];
    adapted_gradients_.push_back(wanted ? Adapted(desc(inputs_[i]), plain(i), bindings.input_gradients[i], rest)
                                        : Adapted());
    gradients_.push_back(wanted ? floats(view(adapted_gradients_.back())).data() : nullptr);
  }
  bound();
}

void PlainOp::forward() {
  for (const Adapted& values : adapted_values_) values.load();
  compute();
}

void PlainOp::backward(float sample_weight) {
  sample_weight_ = sample_weight;
  const bool wanted = std::ranges::any_of(gradients_, [](const float* gradient) { return gradient != nullptr; });
  if (!wanted && !trains_parameters()) return;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    if (info_.input(i).backward_reads) adapted_values_[i].load();
    if (accumulates(i)) adapted_gradients_[i].load();
  }
  differentiate();
  for (const Adapted& gradient : adapted_gradients_) gradient.store();
}

}  // namespace annulus::cpu
