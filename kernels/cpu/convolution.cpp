#include <algorithm>
#include <optional>

#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/first_convolution.h"
#include "kernels/cpu/flat.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/row_convolution.h"
#include "kernels/cpu/winograd.h"

namespace annulus::cpu {
namespace {

using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;
using dnnl::memory;

constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

// The descriptions that the three passes of a convolution share.
struct Problem {
  memory::desc source, weights, bias, destination;
  memory::dims strides, padding;
};

Forward::primitive_desc plan_forward(const Problem& p, Mode mode, bool relu) {
  const auto kind = mode == Mode::training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
  return {{kind, kAlgorithm, p.source, p.weights, p.bias, p.destination, p.strides, p.padding, p.padding},
          attributes(relu),
          engine()};
}

class ConvolutionOp : public Op {
 public:
  ConvolutionOp(const Convolution& operation, const Specs& inputs, Mode mode, const Specs& fixed)
      : operation_(operation), mode_(mode), input_(desc(inputs[0])) {
    const auto declared = annulus::parameters(Operation(operation), {inputs[0].shape});
    const Shape output = output_shape(Operation(operation), {inputs[0].shape});
    const auto dim = [](std::size_t size) { return static_cast<memory::dim>(size); };
    Problem any{any_layout(inputs[0].shape),
                any_layout(declared[0].shape),
                operation.bias ? plain_layout(declared[1].shape) : memory::desc(),
                any_layout(output),
                {dim(operation.stride), dim(operation.stride)},
                {dim(operation.padding.height), dim(operation.padding.width)}};

    Problem problem = any;
    problem.weights = fixed_or_any(fixed, 0, declared[0].shape);
    forward_ = plan_without_reorder(problem);
    output_ = spec(output, forward_.dst_desc());
    parameters_ = {spec(declared[0].shape, forward_.weights_desc())};
    if (operation.bias) parameters_.push_back(spec(declared[1].shape, any.bias));
    scratch_bytes_ = Scratch::bytes({Adapted::copy(input_, forward_.src_desc()), forward_.scratchpad_desc()});

    if (mode == Mode::inference) return;
    if (FirstConvolutionGradient::supports(operation, inputs[0], output_, parameters_[0]))
      first_.emplace(operation, inputs[0], output_);
    else
      backward_weights_ = {
          {kAlgorithm, any.source, any.weights, any.bias, any.destination, any.strides, any.padding, any.padding},
          attributes(),
          engine(),
          forward_};
    scratch_bytes_ = std::max(scratch_bytes_, weights_scratch_bytes());
    if (!operation.input_gradient) return;
    backward_data_ = {{kAlgorithm, any.source, any.weights, any.destination, any.strides, any.padding, any.padding},
                      attributes(),
                      engine(),
                      forward_};
    scratch_bytes_ = std::max(scratch_bytes_, data_scratch_bytes());
  }

  bool backward_reads_output() const override { return operation_.relu; }
  std::size_t scratch_bytes() const override { return scratch_bytes_; }

  void bind(const Bindings& bindings) override {
    const memory::desc& output = desc(output_);
    const memory::desc& weights = desc(parameters_[0]);
    Scratch for_forward(bindings.scratch), for_data(bindings.scratch);
    forward_source_ = {input_, forward_.src_desc(), bindings.inputs[0], for_forward};
    run_forward_ = {Forward(forward_),
                    with_bias(DNNL_ARG_BIAS, bias(bindings.parameters),
                              {{DNNL_ARG_SRC, forward_source_.wanted()},
                               {DNNL_ARG_WEIGHTS, memory_at(weights, bindings.parameters[0])},
                               {DNNL_ARG_DST, memory_at(output, bindings.output)}}),
                    for_forward.take(forward_.scratchpad_desc())};
    if (mode_ == Mode::inference) return;

    output_values_ = floats(bindings.output);
    output_gradient_ = floats(bindings.output_gradient);
    first_input_ = floats(bindings.inputs[0]);
    first_weights_ = floats(bindings.parameter_gradients[0]);
    if (operation_.bias) first_bias_ = floats(bindings.parameter_gradients[1]);

    if (first_)
      first_->allocate();
    else
      bind_backward_weights(bindings);
    if (!bindings.input_gradients[0]) return;
    data_weights_ = {weights, backward_data_.weights_desc(), bindings.parameters[0], for_data};
    data_output_gradient_ = {output, backward_data_.diff_dst_desc(), bindings.output_gradient, for_data};
    data_input_gradient_ = {input_, backward_data_.diff_src_desc(), bindings.input_gradients[0], for_data};
    run_backward_data_ = {BackwardData(backward_data_),
                          {{DNNL_ARG_WEIGHTS, data_weights_.wanted()},
                           {DNNL_ARG_DIFF_DST, data_output_gradient_.wanted()},
                           {DNNL_ARG_DIFF_SRC, data_input_gradient_.wanted()}},
                          for_data.take(backward_data_.scratchpad_desc())};
  }

  void forward() override {
    forward_source_.load();
    run_forward_.run();
  }

  void backward(float) override {
    if (operation_.relu) relu_backward(output_values_, output_gradient_, output_gradient_);
    backward_weights();
    data_weights_.load();
    data_output_gradient_.load();
    run_backward_data_.run();
    data_input_gradient_.store();
  }

 private:
  std::size_t weights_scratch_bytes() const {
    if (first_) return 0;
    return Scratch::bytes({Adapted::copy(input_, backward_weights_.src_desc()),
                           Adapted::copy(desc(output_), backward_weights_.diff_dst_desc()),
                           Adapted::copy(desc(parameters_[0]), backward_weights_.diff_weights_desc()),
                           backward_weights_.scratchpad_desc()});
  }

  std::size_t data_scratch_bytes() const {
    return Scratch::bytes({Adapted::copy(desc(parameters_[0]), backward_data_.weights_desc()),
                           Adapted::copy(desc(output_), backward_data_.diff_dst_desc()),
                           Adapted::copy(input_, backward_data_.diff_src_desc()), backward_data_.scratchpad_desc()});
  }

  memory bias(const std::vector<DeviceView>& from) const {
    return operation_.bias ? memory_at(desc(parameters_[1]), from[1]) : memory();
  }

  void bind_backward_weights(const Bindings& bindings) {
    const memory::desc& output = desc(output_);
    const memory::desc& weights = desc(parameters_[0]);
    Scratch for_weights(bindings.scratch);
    weights_source_ = {input_, backward_weights_.src_desc(), bindings.inputs[0], for_weights};
    weights_output_gradient_ = {output, backward_weights_.diff_dst_desc(), bindings.output_gradient, for_weights};
    weights_gradient_ = {weights, backward_weights_.diff_weights_desc(), bindings.parameter_gradients[0], for_weights};
    run_backward_weights_ = {BackwardWeights(backward_weights_),
                             with_bias(DNNL_ARG_DIFF_BIAS, bias(bindings.parameter_gradients),
                                       {{DNNL_ARG_SRC, weights_source_.wanted()},
                                        {DNNL_ARG_DIFF_DST, weights_output_gradient_.wanted()},
                                        {DNNL_ARG_DIFF_WEIGHTS, weights_gradient_.wanted()}}),
                             for_weights.take(backward_weights_.scratchpad_desc())};
  }

  void backward_weights() {
    if (first_) return first_->run(first_input_.data(), output_gradient_.data(), first_weights_, first_bias_);
    weights_source_.load();
    weights_output_gradient_.load();
    run_backward_weights_.run();
    weights_gradient_.store();
  }

  // The input as it lies there, if oneDNN has fast code for that; else in the layout that it would rather have.
  Forward::primitive_desc plan_without_reorder(Problem problem) const {
    const auto preferred = plan_forward(problem, mode_, operation_.relu);
    problem.source = input_;
    try {
      const auto direct = plan_forward(problem, mode_, operation_.relu);
      if (std::string_view(direct.impl_info_str()).starts_with("jit")) return direct;
    } catch (const dnnl::error&) {  // unsupported
    }
    return preferred;
  }

  static Primitive::Arguments with_bias(int index, const memory& bias, Primitive::Arguments arguments) {
    if (bias) arguments.emplace_back(index, bias);
    return arguments;
  }

  Convolution operation_;
  Mode mode_;
  memory::desc input_;
  Forward::primitive_desc forward_;
  BackwardWeights::primitive_desc backward_weights_;
  BackwardData::primitive_desc backward_data_;
  std::size_t scratch_bytes_ = 0;
  Adapted forward_source_, weights_source_, weights_output_gradient_, weights_gradient_, data_weights_,
      data_output_gradient_, data_input_gradient_;
  Primitive run_forward_, run_backward_weights_, run_backward_data_;
  std::optional<FirstConvolutionGradient> first_;  // where it is faster than oneDNN
  std::span<const float> output_values_, first_input_;
  std::span<float> output_gradient_, first_weights_, first_bias_;
};

// A kernel of our own where it is faster than oneDNN's, in oneDNN's layouts.
template <class Kernel>
class OwnConvolutionOp : public Op {
 public:
  OwnConvolutionOp(const Convolution& operation, const TensorSpec& input, Mode mode, const Op& same)
      : relu_(operation.relu), mode_(mode), kernel_(operation, input, same.output()) {
    output_ = same.output();
    parameters_ = same.parameters();
  }

  bool backward_reads_output() const override { return relu_; }
  std::size_t scratch_bytes() const override { return kernel_.scratch_bytes(mode_); }

  void bind(const Bindings& bindings) override { bound_ = bindings; }

  void forward() override {
    const auto bias = parameters_.size() > 1 ? floats(bound_.parameters[1]) : std::span<float>();
    kernel_.forward(floats(bound_.inputs[0]), floats(bound_.parameters[0]), bias, relu_, floats(bound_.output),
                    bound_.scratch);
  }

  void backward(float) override {
    const auto gradient = floats(bound_.output_gradient);
    if (relu_) relu_backward(floats(bound_.output), gradient, gradient);
    const auto bias = parameters_.size() > 1 ? floats(bound_.parameter_gradients[1]) : std::span<float>();
    kernel_.backward_weights(floats(bound_.inputs[0]), gradient, floats(bound_.parameter_gradients[0]), bias,
                             bound_.scratch);
    if (bound_.input_gradients[0])
      kernel_.backward_data(gradient, floats(bound_.parameters[0]), floats(bound_.input_gradients[0]), bound_.scratch);
  }

 private:
  bool relu_;
  Mode mode_;
  Kernel kernel_;
  Bindings bound_;
};

}  // namespace

std::unique_ptr<Op> plan(const Convolution& operation, const Specs& inputs, Mode mode, const Specs& parameters) {
  auto direct = std::make_unique<ConvolutionOp>(operation, inputs, mode, parameters);
  const auto supported = [&](const auto& supports) {
    return supports(operation, inputs[0], direct->output(), direct->parameters()[0]);
  };
  if (supported(Winograd::supports))
    return std::make_unique<OwnConvolutionOp<Winograd>>(operation, inputs[0], mode, *direct);
  if (supported(RowConvolution::supports))
    return std::make_unique<OwnConvolutionOp<RowConvolution>>(operation, inputs[0], mode, *direct);
  return direct;
}

}  // namespace annulus::cpu
