#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/dnnl_pass.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

using Forward = dnnl::inner_product_forward;
using BackwardData = dnnl::inner_product_backward_data;
using BackwardWeights = dnnl::inner_product_backward_weights;

// Uses the input in its layout, with weights in a matching layout, so nothing is flattened or reordered; unless the
// weights' layout is already fixed and oneDNN has only a reference implementation for the combination.
class DenseOp : public Op {
 public:
  DenseOp(const Dense& operation, const Specs& inputs, Mode mode, const Specs& fixed)
      : relu_(operation.relu), mode_(mode) {
    const auto declared = annulus::parameters(Operation(operation), {inputs[0].shape});
    const Shape output = output_shape(Operation(operation), {inputs[0].shape});
    const auto& input = desc(inputs[0]);
    const auto fixed_weights = fixed_or_any(fixed, 0, declared[0].shape);
    const auto any_input = any_layout(inputs[0].shape), any_weights = any_layout(declared[0].shape);
    const auto bias = operation.bias ? plain_layout(declared[1].shape) : dnnl::memory::desc();
    const auto destination = plain_layout(output);

    const auto kind = mode == Mode::training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const auto forward = plan_primitive<Forward>({{kind, input, fixed_weights, bias, destination},
                                                  {kind, any_input, fixed_weights, bias, destination},
                                                  {kind, any_input, any_weights, bias, destination}},
                                                 attributes(relu_));
    const auto weights = fixed.empty() ? forward.weights_desc() : fixed_weights;
    info_.output = spec(output, destination);
    info_.parameters = {spec(declared[0].shape, weights)};
    if (operation.bias) info_.parameters.push_back(spec(declared[1].shape, bias));
    forward_ = {
        forward,
        {{DNNL_ARG_SRC, input}, {DNNL_ARG_DST, destination, true}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_BIAS, bias}}};

    if (mode == Mode::training) {
      backward_weights_ = {plan_primitive<BackwardWeights>(
                               {{input, weights, bias, destination}, {any_input, any_weights, bias, destination}},
                               attributes(), forward),
                           {{DNNL_ARG_SRC, input},
                            {DNNL_ARG_DIFF_DST, destination},
                            {DNNL_ARG_DIFF_WEIGHTS, weights, true},
                            {DNNL_ARG_DIFF_BIAS, bias, true}}};
      if (operation.input_gradient)
        backward_data_ = {
            plan_primitive<BackwardData>({{input, weights, destination}, {any_input, any_weights, destination}},
                                         attributes(), forward),
            {{DNNL_ARG_DIFF_SRC, input, true}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_DST, destination}}};
    }
    info_.backward_reads_output = operation.relu;
    info_.skips_parameter_gradients = true;
    info_.scratch_bytes = most_scratch({&forward_, &backward_weights_, &backward_data_});
    info_.implementations = implementations_of({&forward_, &backward_weights_, &backward_data_});
  }

  void bind(const Bindings& b) override {
    forward_.bind(operands(b.inputs[0], b.output, b.parameters), b.scratch);
    if (mode_ == Mode::inference) return;
    relu_output_ = floats(b.output);
    output_gradient_ = floats(b.output_gradient);
    if (b.parameter_gradients[0])
      backward_weights_.bind(operands(b.inputs[0], b.output_gradient, b.parameter_gradients), b.scratch);
    if (b.input_gradients[0])
      backward_data_.bind({b.input_gradients[0], b.parameters[0], b.output_gradient}, b.scratch);
  }

  void forward() override { forward_.run(); }

  void backward(float) override {
    if (relu_) relu_backward(relu_output_, output_gradient_, output_gradient_);
    backward_weights_.run();
    backward_data_.run();
  }

 private:
  bool relu_;
  Mode mode_;
  DnnlPass forward_, backward_weights_, backward_data_;
  std::span<const float> relu_output_;
  std::span<float> output_gradient_;
};

}  // namespace

std::unique_ptr<Op> plan(const Dense& operation, const Specs& inputs, Mode mode, const Specs& parameters) {
  return std::make_unique<DenseOp>(operation, inputs, mode, parameters);
}

}  // namespace annulus::cpu
