#include <algorithm>

#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/flat.h"
#include "kernels/cpu/operations.h"

namespace annulus::cpu {
namespace {

using Forward = dnnl::inner_product_forward;
using BackwardData = dnnl::inner_product_backward_data;
using BackwardWeights = dnnl::inner_product_backward_weights;

// Takes its input in whatever layout it has: the weights are laid out to match, so nothing is flattened or reordered.
class DenseOp : public Op {
 public:
  DenseOp(const Dense& operation, const Specs& inputs, Mode mode, const Specs& fixed)
      : operation_(operation), mode_(mode), input_(desc(inputs[0])) {
    const auto declared = annulus::parameters(Operation(operation), {inputs[0].shape});
    const Shape output = output_shape(Operation(operation), {inputs[0].shape});
    const auto bias = plain_layout(declared[1].shape);

    const auto kind = mode == Mode::training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const auto destination = plain_layout(output);
    forward_ = {{kind, input_, fixed_or_any(fixed, 0, declared[0].shape), bias, destination},
                attributes(operation.relu),
                engine()};
    scratch_bytes_ = Scratch::bytes({forward_.scratchpad_desc()});
    output_ = spec(output, destination);
    const auto weights = forward_.weights_desc();
    parameters_ = {spec(declared[0].shape, weights), spec(declared[1].shape, bias)};

    if (mode == Mode::inference) return;
    backward_weights_ = {{input_, weights, bias, destination}, attributes(), engine(), forward_};
    scratch_bytes_ = std::max(scratch_bytes_, Scratch::bytes({backward_weights_.scratchpad_desc()}));
    if (!operation.input_gradient) return;
    backward_data_ = {{input_, weights, destination}, attributes(), engine(), forward_};
    scratch_bytes_ = std::max(scratch_bytes_, Scratch::bytes({backward_data_.scratchpad_desc()}));
  }

  bool backward_reads_output() const override { return operation_.relu; }
  std::size_t scratch_bytes() const override { return scratch_bytes_; }

  void bind(const Bindings& bindings) override {
    const auto input = memory_at(input_, bindings.inputs[0]);
    const auto weights = memory_at(desc(parameters_[0]), bindings.parameters[0]);
    const auto scratchpad = [&](const auto& plan) { return Scratch(bindings.scratch).take(plan.scratchpad_desc()); };
    run_forward_ = {Forward(forward_),
                    {{DNNL_ARG_SRC, input},
                     {DNNL_ARG_WEIGHTS, weights},
                     {DNNL_ARG_BIAS, memory_at(desc(parameters_[1]), bindings.parameters[1])},
                     {DNNL_ARG_DST, memory_at(desc(output_), bindings.output)}},
                    scratchpad(forward_)};
    if (mode_ == Mode::inference) return;

    relu_output_ = floats(bindings.output);
    output_gradient_ = floats(bindings.output_gradient);
    const auto gradient = memory_at(desc(output_), bindings.output_gradient);
    run_backward_weights_ = {BackwardWeights(backward_weights_),
                             {{DNNL_ARG_SRC, input},
                              {DNNL_ARG_DIFF_DST, gradient},
                              {DNNL_ARG_DIFF_WEIGHTS, memory_at(desc(parameters_[0]), bindings.parameter_gradients[0])},
                              {DNNL_ARG_DIFF_BIAS, memory_at(desc(parameters_[1]), bindings.parameter_gradients[1])}},
                             scratchpad(backward_weights_)};
    if (!bindings.input_gradients[0]) return;
    run_backward_data_ = {BackwardData(backward_data_),
                          {{DNNL_ARG_WEIGHTS, weights},
                           {DNNL_ARG_DIFF_DST, gradient},
                           {DNNL_ARG_DIFF_SRC, memory_at(input_, bindings.input_gradients[0])}},
                          scratchpad(backward_data_)};
  }

  void forward() override { run_forward_.run(); }

  void backward(float) override {
    if (operation_.relu) relu_backward(relu_output_, output_gradient_, output_gradient_);
    run_backward_weights_.run();
    run_backward_data_.run();
  }

 private:
  Dense operation_;
  Mode mode_;
  dnnl::memory::desc input_;
  Forward::primitive_desc forward_;
  BackwardWeights::primitive_desc backward_weights_;
  BackwardData::primitive_desc backward_data_;
  std::size_t scratch_bytes_ = 0;
  Primitive run_forward_, run_backward_weights_, run_backward_data_;
  std::span<const float> relu_output_;
  std::span<float> output_gradient_;
};

}  // namespace

std::unique_ptr<Op> plan(const Dense& operation, const Specs& inputs, Mode mode, const Specs& parameters) {
  return std::make_unique<DenseOp>(operation, inputs, mode, parameters);
}

}  // namespace annulus::cpu
