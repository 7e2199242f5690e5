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

class BatchNormOp : public Op {
 public:
  BatchNormOp(const BatchNorm& operation, const Specs& inputs, Mode mode)
      : mode_(mode), layout_(desc(inputs[0])), batch_(static_cast<float>(inputs[0].shape[0])) {
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
    if (!training) return;

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

  void forward() override { run_forward_.run(); }

  void backward(float sample_weight) override {
    run_backward_.run();
    // From now on they are this rank's part of the mean over the global batch. The variance that inference wants is
    // that of the population, the batch's is smaller by (n - 1) / n.
    scale(mean_, batch_ * sample_weight, mean_);
    scale(variance_, batch_ * sample_weight * unbias_, variance_);
  }

 private:
  Mode mode_;
  dnnl::memory::desc layout_, channels_;
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
