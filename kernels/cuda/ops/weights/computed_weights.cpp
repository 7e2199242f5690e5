#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "kernels/cuda/ops/loops/elementwise.h"
#include "kernels/cuda/ops/plan/move.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/cuda/runtime/number.h"

namespace annulus::cuda {
namespace {

// A value as a layer's parameter: a copy in the value type, a float32 copy, and the gradients of both, in the scratch.
class AdaptedWeight {
 public:
  AdaptedWeight(const TensorSpec& value, const TensorSpec& parameter, Context& context)
      : context_(context),
        as_values_(value_spec(parameter.shape, context.type(), channels_last(parameter).axis())),
        floats_(parameter.layout->bytes()),
        copies_(channels_last(parameter).count() * size_of(context.type())),
        there_(to_layout(value, as_values_, context)),
        back_(to_layout(as_values_, value, context)) {}

  std::size_t bytes() const { return 2 * (floats_ + (wide() ? 0 : copies_)); }

  // `gradient`: the value's, empty if it is not needed; `accumulate`: add to it.
  void bind(DeviceView value, DeviceView gradient, bool accumulate, DeviceView scratch) {
    value_ = value;
    to_ = gradient;
    accumulate_ = accumulate;
    std::size_t at = 0;
    const auto take = [&](std::size_t bytes) { return scratch.slice(std::exchange(at, at + bytes), bytes); };
    parameter_ = take(floats_);
    gradient_ = take(floats_);
    copy_ = wide() ? parameter_ : take(copies_);
    gradient_copy_ = wide() ? gradient_ : take(copies_);
  }

  DeviceView parameter() const { return parameter_; }
  DeviceView copy() const { return wide() ? DeviceView{} : copy_; }
  DeviceView gradient() const { return gradient_; }

  // Padding filters come last; they are zero, and stay zero.
  void load(const float* one) const {
    const std::size_t used = as_values_.layout->bytes();
    there_.run(value_, copy_.slice(0, used), false);
    if (used < copies_) check(cudaMemsetAsync(copy_.address + used, 0, copies_ - used, context_.lane.get()));
    if (!wide()) widen(copy_.address, parameter_, one, context_);
  }

  // Values' gradients are multiplied by the loss's scale, parameters' are not.
  void store() const {
    if (!to_) return;
    if (!wide()) narrow(gradient_, gradient_copy_, context_.loss_scale, context_);
    back_.run(gradient_copy_.slice(0, as_values_.layout->bytes()), to_, accumulate_);
  }

 private:
  bool wide() const { return context_.type() == DataType::f32; }

  Context& context_;
  TensorSpec as_values_;
  std::size_t floats_, copies_;  // in bytes
  Move there_, back_;
  DeviceView value_, to_, parameter_, gradient_, copy_, gradient_copy_;
  bool accumulate_ = false;
};

// Runs a layer over parameters that are inputs.
class ComputedWeightsOp : public Op {
 public:
  ComputedWeightsOp(std::unique_ptr<Op> layer, const Specs& inputs, Context& context)
      : layer_(std::move(layer)), one_(to_device(std::as_bytes(std::span(kOne)))) {
    info_ = layer_->info();
    info_.parameters.clear();
    info_.inputs.assign(inputs.size(), {.adds_to_gradient = true});
    info_.inputs[0] = layer_->info().input(0);
    for (std::size_t i = 0; i < layer_->parameters().size(); ++i) {
      weights_.emplace_back(inputs[i + 1], layer_->parameters()[i], context);
      info_.scratch_bytes += weights_.back().bytes();
    }
  }

  void bind(const Bindings& bindings) override {
    Bindings own = bindings;
    own.inputs = {bindings.inputs[0]};
    if (!own.accumulate.empty()) own.accumulate.resize(1);
    const bool training(bindings.output_gradient);
    const auto& gradients = bindings.input_gradients;
    if (training) own.input_gradients = {gradients[0]};
    const bool all = std::any_of(gradients.begin() + 1, gradients.end(), [](const auto& g) { return bool(g); });
    const bool needed = training && (all || !layer_->info().skips_parameter_gradients);
    std::size_t at = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const std::size_t bytes = weights_[i].bytes();
      weights_[i].bind(bindings.inputs[i + 1], training ? gradients[i + 1] : DeviceView{}, bindings.accumulates(i + 1),
                       bindings.scratch.slice(std::exchange(at, at + bytes), bytes));
      own.parameters.push_back(weights_[i].parameter());
      own.copies.push_back(weights_[i].copy());
      if (training) own.parameter_gradients.push_back(needed ? weights_[i].gradient() : DeviceView{});
    }
    own.scratch = bindings.scratch.slice(at, bindings.scratch.bytes - at);
    layer_->bind(own);
  }

  void forward() override {
    load();
    layer_->forward();
  }

  void backward(float sample_weight) override {
    load();
    layer_->backward(sample_weight);
    for (const AdaptedWeight& weight : weights_) weight.store();
  }

 private:
  static constexpr std::array<float, 1> kOne{1};

  void load() const {
    for (const AdaptedWeight& weight : weights_) weight.load(reinterpret_cast<const float*>(one_.view().address));
  }

  std::unique_ptr<Op> layer_;
  Buffer one_;
  std::vector<AdaptedWeight> weights_;
};

}  // namespace

std::unique_ptr<Op> plan(const ComputedWeights& operation, const Specs& inputs, Mode mode, Context& context) {
  auto layer = std::visit([&](const auto& o) { return plan(o, {inputs[0]}, mode, context); }, operation.layer);
  return std::make_unique<ComputedWeightsOp>(std::move(layer), inputs, context);
}

}  // namespace annulus::cuda
