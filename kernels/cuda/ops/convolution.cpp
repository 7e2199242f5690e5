#include <algorithm>

#include "kernels/cuda/ops/bias.h"
#include "kernels/cuda/ops/flat.h"
#include "kernels/cuda/ops/operations.h"
#include "kernels/cuda/runtime/layout.h"

namespace annulus::cuda {
namespace {

using Pass = ConvolutionProblem::Pass;

class ConvolutionOp : public Op {
 public:
  ConvolutionOp(const Convolution& operation, const Specs& inputs, Mode mode, Context& context)
      : operation_(operation),
        mode_(mode),
        context_(context),
        output_shape_(output_shape(Operation(operation), {inputs[0].shape})),
        problem_(problem(operation, inputs[0], context)),
        ending_(operation.bias, operation.relu, output_shape_[0] * output_shape_[2] * output_shape_[3],
                problem_.filters, context) {
    info_.output = value_spec(output_shape_, context.type());
    info_.inputs = {{.adds_to_gradient = true}};
    info_.backward_reads_output = operation.relu;
    for (const auto& declared : annulus::parameters(Operation(operation), {inputs[0].shape}))
      info_.parameters.push_back(declared.shape.size() > 1 ? weights_spec(declared.shape, context.type())
                                                           : channels_spec(declared.shape, context.type()));
    forward_ = planned(Pass::forward);
    if (mode == Mode::training) backward_weights_ = planned(Pass::backward_weights);
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    weights_ = context_.type() == DataType::f32 ? bindings.parameters[0] : bindings.copies[0];
    std::size_t bytes = forward_->workspace_bytes();
    if (mode_ == Mode::training) {
      bytes =
          std::max({bytes, ending_.workspace_bytes(), weight_scratch_bytes() + backward_weights_->workspace_bytes()});
      // Planned only now, because the bindings determine whether it accumulates.
      problem_.accumulate = !bindings.accumulate.empty() && bindings.accumulate[0];
      if (bindings.input_gradients[0]) backward_data_ = planned(Pass::backward_data);
      if (backward_data_) bytes = std::max(bytes, backward_data_->workspace_bytes());
    }
    workspace_ = static_cast<std::byte*>(context_.workspace(bytes));
  }

  void forward() override {
    forward_->run(bindings_.inputs[0].address, weights_.address, bindings_.output.address, workspace_, lane());
    ending_.forward(bindings_.output.address, bias(bindings_.parameters));
  }

  void backward(float) override {
    std::byte* gradient = bindings_.output_gradient.address;
    ending_.backward(bindings_.output.address, gradient, bias(bindings_.parameter_gradients), workspace_);
    if (bindings_.parameter_gradients[0]) backward_weights(gradient);
    if (backward_data_)
      backward_data_->run(bindings_.input_gradients[0].address, weights_.address, gradient, workspace_, lane());
  }

 private:
  static ConvolutionProblem problem(const Convolution& o, const TensorSpec& input, const Context& context) {
    const std::size_t block = channel_block(context.type());
    return {.pass = Pass::forward,
            .precision = context.precision,
            .batch = input.shape[0],
            .channels = channels_last(input).channels(),
            .height = input.shape[2],
            .width = input.shape[3],
            .filters = (o.channels + block - 1) / block * block,
            .kernel = o.kernel,
            .stride = o.stride,
            .padding = o.padding,
            .dilation = o.dilation};
  }

  std::unique_ptr<ConvolutionPlan> planned(Pass pass) {
    ConvolutionProblem one = problem_;
    one.pass = pass;
    one.accumulate = pass == Pass::backward_data && problem_.accumulate;
    return context_.convolutions->plan(one);
  }

  float* bias(const std::vector<DeviceView>& of) const {
    return operation_.bias ? reinterpret_cast<float*>(of[1].address) : nullptr;
  }

  // The size of the weights' gradient in a 16-bit type, at the begin of the workspace, before it is widened. In float32
  // it is written directly to the arena.
  std::size_t weight_scratch_bytes() const {
    if (context_.type() == DataType::f32) return 0;
    constexpr std::size_t kAlignment = 256;  // of the plan's workspace after it
    const std::size_t bytes = channels_last(info_.parameters[0]).count() * size_of(context_.type());
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  void backward_weights(std::byte* output_gradient) {
    const DeviceView gradient = bindings_.parameter_gradients[0].slice(0, info_.parameters[0].layout->bytes());
    const std::size_t scratch = weight_scratch_bytes();
    backward_weights_->run(bindings_.inputs[0].address, scratch > 0 ? workspace_ : gradient.address, output_gradient,
                           workspace_ + scratch, lane());
    if (scratch > 0) widen(workspace_, gradient, context_.unscale, context_);
  }

  cudaStream_t lane() const { return context_.lane.get(); }

  Convolution operation_;
  Mode mode_;
  Context& context_;
  Shape output_shape_;
  ConvolutionProblem problem_;
  BiasRelu ending_;
  std::unique_ptr<ConvolutionPlan> forward_, backward_weights_, backward_data_;  // backward_data_ is null if not needed
  Bindings bindings_;
  DeviceView weights_;  // in the value type
  std::byte* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const Convolution& operation, const Specs& inputs, Mode mode, Context& context) {
  if (operation.groups != 1) return plan_grouped(operation, inputs[0], mode, context);
  return std::make_unique<ConvolutionOp>(operation, inputs, mode, context);
}

}  // namespace annulus::cuda
