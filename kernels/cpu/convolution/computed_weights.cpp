#include <algorithm>

#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

// A parameter's dimensions in row-major order. (oneDNN has more dimensions for some weights.)
dnnl::memory::desc row_major(const TensorSpec& parameter) {
  const auto dims = desc(parameter).dims();
  return plain_layout(Shape(dims.begin(), dims.end()));
}

// A value in a parameter's layout: in two steps, because a parameter can have other dimensions. Both copies are in the
// scratch, unless the layouts agree.
class AdaptedWeight {
 public:
  AdaptedWeight() = default;
  AdaptedWeight(const TensorSpec& value, const TensorSpec& parameter, DeviceView tensor, Scratch& scratch)
      : outside_(desc(value), plain_layout(value.shape), tensor, scratch),
        inside_(row_major(parameter), desc(parameter), view(outside_), scratch) {}

  static std::size_t bytes(const TensorSpec& value, const TensorSpec& parameter) {
    return Scratch::bytes(
        {Adapted::copy(desc(value), plain_layout(value.shape)), Adapted::copy(row_major(parameter), desc(parameter))});
  }

  DeviceView parameter() const { return view(inside_); }
  void load() const {
    outside_.load();
    inside_.load();
  }
  void store() const {
    inside_.store();
    outside_.store();
  }

 private:
  static DeviceView view(const Adapted& adapted) {
    return {static_cast<std::byte*>(adapted.wanted().get_data_handle()), adapted.wanted().get_desc().get_size()};
  }

  Adapted outside_, inside_;
};

// Runs a layer over parameters that are inputs.
class ComputedWeightsOp : public Op {
 public:
  ComputedWeightsOp(std::unique_ptr<Op> layer, const Specs& inputs) : layer_(std::move(layer)), inputs_(inputs) {
    info_ = layer_->info();
    info_.parameters.clear();
    info_.inputs.assign(inputs.size(), InputUse{});
    info_.inputs[0] = layer_->info().input(0);
    for (std::size_t i = 0; i < layer_->parameters().size(); ++i) {
      own_bytes_ += 2 * AdaptedWeight::bytes(inputs_[i + 1], layer_->parameters()[i]);
      own_bytes_ += Scratch::bytes({plain_layout(inputs_[i + 1].shape)});  // for a gradient that is not needed
    }
    info_.scratch_bytes = own_bytes_ + layer_->info().scratch_bytes;
  }

  void bind(const Bindings& bindings) override {
    Bindings own = bindings;
    own.inputs = {bindings.inputs[0]};
    if (!own.accumulate.empty()) own.accumulate.resize(1);
    Scratch scratch(bindings.scratch.slice(0, own_bytes_));
    own.scratch = bindings.scratch.slice(own_bytes_, bindings.scratch.bytes - own_bytes_);
    values_.clear();
    gradients_.clear();
    for (std::size_t i = 0; i < layer_->parameters().size(); ++i) {
      values_.emplace_back(inputs_[i + 1], layer_->parameters()[i], bindings.inputs[i + 1], scratch);
      own.parameters.push_back(values_.back().parameter());
    }
    if (bindings.output_gradient) bind_gradients(bindings, own, scratch);
    layer_->bind(own);
  }

  void forward() override {
    for (const AdaptedWeight& value : values_) value.load();
    layer_->forward();
  }

  void backward(float sample_weight) override {
    for (const AdaptedWeight& value : values_) value.load();
    layer_->backward(sample_weight);
    for (const AdaptedWeight& gradient : gradients_) gradient.store();
  }

 private:
  void bind_gradients(const Bindings& bindings, Bindings& own, Scratch& scratch) {
    const auto& gradients = bindings.input_gradients;
    own.input_gradients = {gradients[0]};
    own.parameter_gradients.clear();
    const bool none = std::none_of(gradients.begin() + 1, gradients.end(), [](const auto& g) { return bool(g); });
    for (std::size_t i = 0; i < layer_->parameters().size(); ++i) {
      const TensorSpec& parameter = layer_->parameters()[i];
      if (none && layer_->info().skips_parameter_gradients) {
        own.parameter_gradients.emplace_back();
        continue;
      }
      DeviceView to = gradients[i + 1];
      if (!to) {
        const dnnl::memory unused = scratch.take(desc(parameter));
        own.parameter_gradients.push_back(
            {static_cast<std::byte*>(unused.get_data_handle()), unused.get_desc().get_size()});
        continue;
      }
      gradients_.emplace_back(inputs_[i + 1], parameter, to, scratch);
      own.parameter_gradients.push_back(gradients_.back().parameter());
    }
  }

  std::unique_ptr<Op> layer_;
  Specs inputs_;
  std::size_t own_bytes_ = 0;
  std::vector<AdaptedWeight> values_, gradients_;
};

}  // namespace

std::unique_ptr<Op> plan(const ComputedWeights& operation, const Specs& inputs, Mode mode, const Specs&) {
  auto layer = std::visit([&](const auto& o) { return plan(o, {inputs[0]}, mode, {}); }, operation.layer);
  return std::make_unique<ComputedWeightsOp>(std::move(layer), inputs);
}

}  // namespace annulus::cpu
