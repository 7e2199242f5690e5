#include <optional>
#include <string_view>

#include "kernels/cpu/convolution/first_convolution.h"
#include "kernels/cpu/convolution/grouped_convolution.h"
#include "kernels/cpu/convolution/row_convolution.h"
#include "kernels/cpu/convolution/winograd.h"
#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/dnnl_pass.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;
using dnnl::memory;

constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

// The data that a convolution's passes share; each pass describes it with the layouts that it prefers.
struct Problem {
  memory::desc input, weights, bias, output;
  memory::dims strides, dilation, before, after;  // before and after: the padding

  Forward::desc forward(Mode mode) const {
    const auto kind = mode == Mode::training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    return {kind, kAlgorithm, input, weights, bias, output, strides, dilation, before, after};
  }
  BackwardWeights::desc backward_weights() const {
    return {kAlgorithm, input, weights, bias, output, strides, dilation, before, after};
  }
  BackwardData::desc backward_data() const {
    return {kAlgorithm, input, weights, output, strides, dilation, before, after};
  }
};

memory::dim dim(std::size_t size) {
  return static_cast<memory::dim>(size);
}

// oneDNN's shape for weights {filters, channels, height, width}: several groups are the first dimension.
Shape grouped_weights(const Shape& weights, std::size_t groups) {
  if (groups == 1) return weights;
  return {groups, weights[0] / groups, weights[1], weights[2], weights[3]};
}

class ConvolutionOp : public Op {
 public:
  ConvolutionOp(const Convolution& operation, const Specs& inputs, Mode mode, const Specs& fixed)
      : operation_(operation), mode_(mode) {
    const auto declared = annulus::parameters(Operation(operation), {inputs[0].shape});
    const Shape shape = output_shape(Operation(operation), {inputs[0].shape});
    const Shape grouped = grouped_weights(declared[0].shape, operation.groups);
    const memory::desc& input = desc(inputs[0]);
    const Problem any{any_layout(inputs[0].shape),
                      any_layout(grouped),
                      operation.bias ? plain_layout(declared[1].shape) : memory::desc(),
                      any_layout(shape),
                      {dim(operation.stride.height), dim(operation.stride.width)},
                      {dim(operation.dilation.height) - 1, dim(operation.dilation.width) - 1},
                      {dim(operation.padding.top), dim(operation.padding.left)},
                      {dim(operation.padding.bottom), dim(operation.padding.right)}};

    const auto forward = plan_forward(any, input, fixed_or_any(fixed, 0, grouped));
    const memory::desc weights = fixed.empty() ? forward.weights_desc() : desc(fixed[0]);
    const memory::desc output = forward.dst_desc();
    info_.output = spec(shape, output);
    info_.parameters = {spec(declared[0].shape, weights)};
    if (operation.bias) info_.parameters.push_back(spec(declared[1].shape, any.bias));
    forward_ = {
        forward,
        {{DNNL_ARG_SRC, input}, {DNNL_ARG_DST, output, true}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_BIAS, any.bias}}};

    if (mode == Mode::training) plan_backward(inputs[0], any, forward);
    info_.backward_reads_output = operation.relu;
    info_.skips_parameter_gradients = true;
    info_.scratch_bytes = most_scratch({&forward_, &backward_weights_, &backward_data_});
    info_.implementations = implementations_of({&forward_, &backward_weights_, &backward_data_});
  }

  void bind(const Bindings& b) override {
    forward_.bind(operands(b.inputs[0], b.output, b.parameters), b.scratch);
    if (mode_ == Mode::inference) return;

    output_values_ = floats(b.output);
    output_gradient_ = floats(b.output_gradient);
    first_input_ = floats(b.inputs[0]);
    first_weights_ = floats(b.parameter_gradients[0]);
    if (operation_.bias) first_bias_ = floats(b.parameter_gradients[1]);

    if (first_)
      first_->allocate();
    else if (b.parameter_gradients[0])
      backward_weights_.bind(operands(b.inputs[0], b.output_gradient, b.parameter_gradients), b.scratch);
    if (b.input_gradients[0])
      backward_data_.bind({b.input_gradients[0], b.output_gradient, b.parameters[0]}, b.scratch);
  }

  void forward() override { forward_.run(); }

  void backward(float) override {
    if (operation_.relu) relu_backward(output_values_, output_gradient_, output_gradient_);
    if (first_ && !first_weights_.empty())
      first_->run(first_input_.data(), output_gradient_.data(), first_weights_, first_bias_);
    backward_weights_.run();
    backward_data_.run();
  }

 private:
  void plan_backward(const TensorSpec& input, const Problem& any, const Forward::primitive_desc& forward) {
    const memory::desc &in = desc(input), &weights = desc(info_.parameters[0]), &output = desc(info_.output);
    if (FirstConvolutionGradient::supports(operation_, input, info_.output, info_.parameters[0]))
      first_.emplace(operation_, input, info_.output);
    else
      backward_weights_ = {plan_primitive<BackwardWeights>({any.backward_weights()}, attributes(), forward),
                           {{DNNL_ARG_SRC, in},
                            {DNNL_ARG_DIFF_DST, output},
                            {DNNL_ARG_DIFF_WEIGHTS, weights, true},
                            {DNNL_ARG_DIFF_BIAS, any.bias, true}}};
    if (!operation_.input_gradient) return;
    backward_data_ = {plan_primitive<BackwardData>({any.backward_data()}, attributes(), forward),
                      {{DNNL_ARG_DIFF_SRC, in, true}, {DNNL_ARG_DIFF_DST, output}, {DNNL_ARG_WEIGHTS, weights}}};
  }

  // Uses the input in its layout if oneDNN has fast code for that, else in the layout that oneDNN prefers. If another
  // batch or mode has fixed the weights' layout, and oneDNN has only a reference implementation for it, the weights are
  // reordered.
  Forward::primitive_desc plan_forward(const Problem& any, const memory::desc& input,
                                       const memory::desc& weights) const {
    Problem as_it_lies = any, reordered = any;
    as_it_lies.weights = reordered.weights = weights;
    as_it_lies.input = input;
    const Forward::primitive_desc direct(as_it_lies.forward(mode_), attributes(operation_.relu), engine(), true);
    if (direct && std::string_view(direct.impl_info_str()).starts_with("jit")) return direct;
    return plan_primitive<Forward>({reordered.forward(mode_), any.forward(mode_)}, attributes(operation_.relu));
  }

  Convolution operation_;
  Mode mode_;
  DnnlPass forward_, backward_weights_, backward_data_;
  std::optional<FirstConvolutionGradient> first_;  // if it is faster than oneDNN
  std::span<const float> output_values_, first_input_;
  std::span<float> output_gradient_, first_weights_, first_bias_;
};

// A convolution with a kernel of our own, in oneDNN's layouts.
template <class Kernel>
class OwnConvolutionOp : public Op {
 public:
  OwnConvolutionOp(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                   const std::vector<TensorSpec>& parameters, Mode mode)
      : relu_(operation.relu), kernel_(operation, input, output) {
    info_.output = output;
    info_.parameters = parameters;
    info_.backward_reads_output = operation.relu;
    info_.skips_parameter_gradients = true;
    info_.scratch_bytes = kernel_.scratch_bytes(mode);
  }

  void bind(const Bindings& bindings) override { bound_ = bindings; }

  void forward() override {
    const auto bias = info_.parameters.size() > 1 ? floats(bound_.parameters[1]) : std::span<float>();
    kernel_.forward(floats(bound_.inputs[0]), floats(bound_.parameters[0]), bias, relu_, floats(bound_.output),
                    bound_.scratch);
  }

  void backward(float) override {
    const auto gradient = floats(bound_.output_gradient);
    if (relu_) relu_backward(floats(bound_.output), gradient, gradient);
    const auto bias = info_.parameters.size() > 1 ? floats(bound_.parameter_gradients[1]) : std::span<float>();
    if (bound_.parameter_gradients[0])
      kernel_.backward_weights(floats(bound_.inputs[0]), gradient, floats(bound_.parameter_gradients[0]), bias,
                               bound_.scratch);
    if (bound_.input_gradients[0])
      kernel_.backward_data(gradient, floats(bound_.parameters[0]), floats(bound_.input_gradients[0]), bound_.scratch);
  }

 private:
  bool relu_;
  Kernel kernel_;
  Bindings bound_;
};

}  // namespace

std::unique_ptr<Op> plan(const Convolution& operation, const Specs& inputs, Mode mode, const Specs& parameters) {
  const TensorSpec& input = inputs[0];
  if (GroupedConvolution::supports(operation, input, parameters))
    return std::make_unique<OwnConvolutionOp<GroupedConvolution>>(
        operation, input, GroupedConvolution::output(operation, input),
        GroupedConvolution::parameters(operation, input), mode);
  auto direct = std::make_unique<ConvolutionOp>(operation, inputs, mode, parameters);
  const auto supported = [&](const auto& supports) {
    return supports(operation, input, direct->output(), direct->parameters()[0]);
  };
  if (supported(Winograd::supports))
    return std::make_unique<OwnConvolutionOp<Winograd>>(operation, input, direct->output(), direct->parameters(), mode);
  if (supported(RowConvolution::supports))
    return std::make_unique<OwnConvolutionOp<RowConvolution>>(operation, input, direct->output(), direct->parameters(),
                                                              mode);
  return direct;
}

}  // namespace annulus::cpu
