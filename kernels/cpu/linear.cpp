#include "kernels/cpu/flat.h"
#include "kernels/cpu/pass.h"
#include "kernels/cpu/plain_op.h"

namespace annulus::cpu {
namespace {

using Forward = dnnl::inner_product_forward;
using BackwardData = dnnl::inner_product_backward_data;
using BackwardWeights = dnnl::inner_product_backward_weights;

// A dense layer whose batch are all positions before the last dimension.
class LinearOp : public PlainOp {
 public:
  LinearOp(const Linear& operation, const TensorSpec& input, Mode mode, const Specs& fixed)
      : PlainOp({input}, output_shape(operation, {input.shape})), bias_(operation.bias) {
    const auto declared = operation.parameters({input.shape});
    const std::size_t features = input.shape.back(), rows = elements(input.shape) / features;
    const auto in = plain_layout({rows, features}), out = plain_layout({rows, operation.units});
    const auto bias = bias_ ? plain_layout(declared[1].shape) : dnnl::memory::desc();
    const auto fixed_weights = fixed_or_any(fixed, 0, declared[0].shape), any = any_layout(declared[0].shape);
    const auto kind = mode == Mode::training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const auto forward =
        plan_primitive<Forward>({{kind, in, fixed_weights, bias, out}, {kind, in, any, bias, out}}, attributes());
    const auto weights = fixed.empty() ? forward.weights_desc() : fixed_weights;
    info_.parameters = {spec(declared[0].shape, weights)};
    if (bias_) info_.parameters.push_back(spec(declared[1].shape, bias));
    forward_ = {forward,
                {{DNNL_ARG_SRC, in}, {DNNL_ARG_DST, out, true}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_BIAS, bias}}};
    if (mode == Mode::training) {
      backward_weights_ = {
          plan_primitive<BackwardWeights>({{in, weights, bias, out}, {in, any, bias, out}}, attributes(), forward),
          {{DNNL_ARG_SRC, in},
           {DNNL_ARG_DIFF_DST, out},
           {DNNL_ARG_DIFF_WEIGHTS, weights, true},
           {DNNL_ARG_DIFF_BIAS, bias, true}}};
      backward_data_ = {plan_primitive<BackwardData>({{in, weights, out}, {in, any, out}}, attributes(), forward),
                        {{DNNL_ARG_DIFF_SRC, in, true}, {DNNL_ARG_DIFF_DST, out}, {DNNL_ARG_WEIGHTS, weights}}};
    }
    need_scratch(most_scratch({&forward_, &backward_weights_, &backward_data_}));
    for (const std::string& name : implementations_of({&forward_, &backward_weights_, &backward_data_}))
      info_.implementations.push_back(name);
  }

 private:
  void bound() override {
    forward_.bind(operands(input_view(0), bindings().output, bindings().parameters), own_scratch());
    if (!training()) return;
    const DeviceView gradient = bindings().output_gradient;
    if (trains_parameters())
      backward_weights_.bind(operands(input_view(0), gradient, bindings().parameter_gradients), own_scratch());
    if (input_gradient(0) != nullptr)
      backward_data_.bind({gradient_view(0), gradient, bindings().parameters[0]}, own_scratch());
  }

  void compute() override { forward_.run(); }

  void differentiate() override {
    backward_weights_.run();
    backward_data_.run();
  }

  bool bias_;
  Pass forward_, backward_weights_, backward_data_;
};

}  // namespace

std::unique_ptr<Op> plan(const Linear& operation, const Specs& inputs, Mode mode, const Specs& parameters) {
  return std::make_unique<LinearOp>(operation, inputs[0], mode, parameters);
}

}  // namespace annulus::cpu
