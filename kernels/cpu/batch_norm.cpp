#include <algorithm>

#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/flat.h"
#include "kernels/cpu/operations.h"

namespace annulus::cpu {
namespace {

using Forward = dnnl::batch_normalization_forward;
using Backward = dnnl::batch_normalization_backward;
using Flags = dnnl::normalization_flags;

enum Index { kScale, kShift, kMean, kVariance, kCount };

// What is fused with it works in place on the output, and backward on its gradient.
class BatchNormOp : public Op {
 public:
  BatchNormOp(const BatchNorm& operation, const Specs& inputs, Mode mode)
      : operation_(operation),
        mode_(mode),
        layout_(desc(inputs[0])),
        added_layout_(desc(inputs.back())),
        batch_(static_cast<float>(inputs[0].shape[0])) {
    const Shape& shape = inputs[0].shape;
    const auto values = static_cast<float>(shape[0] * shape[2] * shape[3]);  // that a channel's statistics are over
    unbias_ = values / std::max(values - 1, 1.0f);

    const Flags affine = Flags::use_scale | Flags::use_shift;
    channels_ = plain_layout({shape[1]});
    output_ = inputs[0];
    parameters_.assign(kCount, spec({shape[1]}, channels_));
    if (mode == Mode::inference) {
      forward_ = {{dnnl::prop_kind::forward_inference, layout_, operation.epsilon, affine | Flags::use_global_stats},
                  engine()};
      return;
    }
    forward_ = {{dnnl::prop_kind::forward_training, layout_, operation.epsilon, affine}, engine()};
    backward_ = {{dnnl::prop_kind::backward, layout_, layout_, operation.epsilon, affine}, engine(), forward_};
  }

  void bind(const Bindings& bindings) override {
    const auto channels = [&](DeviceView view) { return memory_at(channels_, view); };
    const auto input = memory_at(layout_, bindings.inputs[0]);
    const auto scale = channels(bindings.parameters[kScale]);
    const auto shift = channels(bindings.parameters[kShift]);
    const bool training = mode_ == Mode::training;

    // In training the batch's statistics go straight to their slots of the gradient arena, and stay there, as they
    // are, until backward has used them.
    const auto& statistics = training ? bindings.parameter_gradients : bindings.parameters;
    const auto mean = channels(statistics[kMean]);
    const auto variance = channels(statistics[kVariance]);
    run_forward_ = {Forward(forward_),
                    {{DNNL_ARG_SRC, input},
                     {DNNL_ARG_SCALE, scale},
                     {DNNL_ARG_SHIFT, shift},
                     {DNNL_ARG_MEAN, mean},
                     {DNNL_ARG_VARIANCE, variance},
                     {DNNL_ARG_DST, memory_at(layout_, bindings.output)}}};
    output_values_ = floats(bindings.output);
    if (operation_.add) added_ = {added_layout_, layout_, bindings.inputs[1]};
    if (!training) return;

    output_gradient_ = floats(bindings.output_gradient);
    if (operation_.add && bindings.input_gradients[1])
      added_gradient_ = {added_layout_, layout_, bindings.input_gradients[1]};

    mean_ = floats(bindings.parameter_gradients[kMean]);
    variance_ = floats(bindings.parameter_gradients[kVariance]);
    // oneDNN writes it even where nobody wants it, behind the image input.
    const DeviceView wanted = bindings.input_gradients[0];
    const auto input_gradient = wanted ? memory_at(layout_, wanted) : dnnl::memory(layout_, engine());
    run_backward_ = {Backward(backward_),
                     {{DNNL_ARG_SRC, input},
                      {DNNL_ARG_SCALE, scale},
                      {DNNL_ARG_SHIFT, shift},
                      {DNNL_ARG_MEAN, mean},
                      {DNNL_ARG_VARIANCE, variance},
                      {DNNL_ARG_DIFF_DST, memory_at(layout_, bindings.output_gradient)},
                      {DNNL_ARG_DIFF_SRC, input_gradient},
                      {DNNL_ARG_DIFF_SCALE, channels(bindings.parameter_gradients[kScale])},
                      {DNNL_ARG_DIFF_SHIFT, channels(bindings.parameter_gradients[kShift])}}};
  }

  void forward() override {
    run_forward_.run();
    if (operation_.add) {
      added_.load();
      add(values(added_), output_values_);
    }
    if (operation_.relu) relu(output_values_, output_values_);
  }

  void backward(float sample_weight) override {
    if (operation_.relu) relu_backward(output_values_, output_gradient_, output_gradient_);
    if (added_gradient_.wanted()) {
      copy(output_gradient_, values(added_gradient_));
      added_gradient_.store();
    }
    run_backward_.run();
    // From now on they are this rank's part of the mean over the global batch. The variance that inference wants is
    // that of the population, the batch's is smaller by (n - 1) / n.
    scale(mean_, batch_ * sample_weight, mean_);
    scale(variance_, batch_ * sample_weight * unbias_, variance_);
  }

 private:
  std::span<float> values(const Adapted& adapted) const {
    return {static_cast<float*>(adapted.wanted().get_data_handle()), layout_.get_size() / sizeof(float)};
  }

  BatchNorm operation_;
  Mode mode_;
  dnnl::memory::desc layout_, added_layout_, channels_;
  Adapted added_, added_gradient_;
  std::span<float> output_values_, output_gradient_;
  float batch_, unbias_;
  Forward::primitive_desc forward_;
  Backward::primitive_desc backward_;
  Primitive run_forward_, run_backward_;
  std::span<float> mean_, variance_;
};

}  // namespace

std::unique_ptr<Op> plan(const BatchNorm& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<BatchNormOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
