#include <algorithm>

#include "kernels/cuda/ops/loops/bias.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/neighbour_fusion.h"

namespace annulus::cuda {
namespace {

using Function = MatmulProblem::Function;

// Returns whether cuBLASLt's GELU, in the tanh form, can compute the operation. How cuBLASLt approximates the
// hyperbolic tangent is not documented, so we use it only for results rounded to 16 bits.
bool is_gelu(const Operation* operation, const Context& context) {
  const auto* activation = std::get_if<Activation>(operation);
  return activation != nullptr && activation->function == Activation::Function::gelu_tanh &&
         context.type() != DataType::f32;
}

// output {rows, units'} = input {rows, features'} weights^T. A dense layer's rows are the samples, and an image's
// features are the values in memory order. A linear layer's rows are all positions before the last dimension.
//
// forward's product computes a GELU after the layer, and the product for the input's gradient differentiates a GELU
// before the layer. (That product could also sum the bias gradient before the GELU, but only to 16 bits.)
class DenseOp : public Op, public NeighbourFusion {
 public:
  struct Layer {
    std::size_t rows;
    bool bias, relu;
    TensorSpec output;
    std::vector<ParameterDeclaration> parameters;
  };

  DenseOp(const Layer& layer, const TensorSpec& input, Mode mode, Context& context)
      : mode_(mode),
        context_(context),
        bias_(layer.bias),
        relu_(layer.relu),
        rows_(layer.rows),
        features_(channels_last(input).count() / rows_),
        units_(channels_last(layer.output).channels()) {
    info_.output = layer.output;
    info_.inputs = {{.adds_to_gradient = true}};
    info_.backward_reads_output = layer.relu;
    info_.skips_parameter_gradients = true;
    info_.keeps_output_gradient = !layer.relu;
    info_.parameters = {weights_spec(layer.parameters[0].shape, context.type())};
    if (bias_) info_.parameters.push_back(channels_spec(layer.parameters[1].shape, context.type()));
    forward_ = plan_forward(relu_ ? Function::relu : Function::none);
    if (mode == Mode::inference) return;
    backward_weights_ = context_.matmuls->plan({.precision = context_.precision,
                                                .rows = units_,
                                                .columns = features_,
                                                .inner = rows_,
                                                .a_transposed = true,
                                                .wide_output = true});
    ending_ = std::make_unique<BiasRelu>(bias_, relu_, rows_, units_, context);
  }

  void fuse_neighbours(const Neighbours& neighbours) override {
    if (!relu_ && is_gelu(neighbours.next_forward, context_)) {
      auto with_gelu = plan_forward(mode_ == Mode::training ? Function::gelu_and_input : Function::gelu);
      info_.fused.next_forward = with_gelu != nullptr;
      if (with_gelu) forward_ = std::move(with_gelu);
    }
    if (is_gelu(neighbours.previous_backward, context_)) {
      backward_data_ = plan_backward_data(Function::gelu_backward, false);
      if (backward_data_) info_.fused.previous = FusedPasses::Previous::whole_backward;
    }
  }

  void bind_neighbours(const NeighbourBindings& bindings) override {
    next_output_ = bindings.next_output;
    if (info_.fused.reads_previous_inputs()) previous_input_ = bindings.previous_inputs[0];
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    const auto& parameters = context_.type() == DataType::f32 ? bindings.parameters : bindings.copies;
    weights_ = parameters[0];
    if (bias_) bias_values_ = parameters[1];
    std::size_t bytes = forward_->workspace_bytes();
    if (mode_ == Mode::training) {
      bytes = std::max({bytes, ending_->workspace_bytes(), backward_weights_->workspace_bytes()});
      // Planned only now, because the bindings determine whether it accumulates.
      if (bindings.input_gradients[0] && info_.fused.previous == FusedPasses::Previous::none)
        backward_data_ = plan_backward_data(Function::none, bindings.accumulates(0));
      if (backward_data_) bytes = std::max(bytes, backward_data_->workspace_bytes());
    }
    workspace_ = context_.workspace(bytes);
  }

  void forward() override {
    forward_->run({.a = bindings_.inputs[0].address,
                   .b = weights_.address,
                   .output = (info_.fused.next_forward ? next_output_ : bindings_.output).address,
                   .bias = bias_values_.address,
                   .gelu_input = bindings_.output.address},
                  workspace_, lane());
  }

  void backward(float) override {
    std::byte* gradient = bindings_.output_gradient.address;
    float* const bias = bias_ ? reinterpret_cast<float*>(bindings_.parameter_gradients[1].address) : nullptr;
    ending_->backward(bindings_.output.address, gradient, bias, workspace_);
    if (bindings_.parameter_gradients[0])
      backward_weights_->run({.a = gradient,
                              .b = bindings_.inputs[0].address,
                              .output = bindings_.parameter_gradients[0].address,
                              .factor = context_.unscale},
                             workspace_, lane());
    if (backward_data_)
      backward_data_->run({.a = gradient,
                           .b = weights_.address,
                           .output = bindings_.input_gradients[0].address,
                           .gelu_input = previous_input_.address},
                          workspace_, lane());
  }

 private:
  std::unique_ptr<Matmul> plan_forward(Function function) const {
    return context_.matmuls->plan({.precision = context_.precision,
                                   .rows = rows_,
                                   .columns = units_,
                                   .inner = features_,
                                   .b_transposed = true,
                                   .bias = bias_,
                                   .function = function});
  }
  std::unique_ptr<Matmul> plan_backward_data(Function function, bool accumulate) const {
    return context_.matmuls->plan({.precision = context_.precision,
                                   .rows = rows_,
                                   .columns = features_,
                                   .inner = units_,
                                   .function = function,
                                   .accumulate = accumulate});
  }
  cudaStream_t lane() const { return context_.lane.get(); }

  Mode mode_;
  Context& context_;
  bool bias_, relu_;
  std::size_t rows_, features_, units_;
  std::unique_ptr<Matmul> forward_, backward_weights_, backward_data_;  // backward_data_ is null if not needed
  std::unique_ptr<BiasRelu> ending_;                                    // for BiasRelu's backward pass
  Bindings bindings_;
  DeviceView next_output_, previous_input_;  // if their passes are fused
  DeviceView weights_, bias_values_;         // in the value type
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const Dense& operation, const Specs& inputs, Mode mode, Context& context) {
  const Shapes in{inputs[0].shape};
  const DenseOp::Layer layer{inputs[0].shape[0], operation.bias, operation.relu,
                             value_spec(operation.output_shape(in), context.type()), operation.parameters(in)};
  return std::make_unique<DenseOp>(layer, inputs[0], mode, context);
}

std::unique_ptr<Op> plan(const Linear& operation, const Specs& inputs, Mode mode, Context& context) {
  const Shapes in{inputs[0].shape};
  const DenseOp::Layer layer{channels_last(inputs[0]).rows(), operation.bias, false,
                             last_spec(operation.output_shape(in), context.type()), operation.parameters(in)};
  return std::make_unique<DenseOp>(layer, inputs[0], mode, context);
}

}  // namespace annulus::cuda
