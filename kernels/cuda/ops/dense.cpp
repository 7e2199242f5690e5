#include <algorithm>

#include "kernels/cuda/ops/bias.h"
#include "kernels/cuda/ops/operations.h"
#include "kernels/cuda/runtime/layout.h"

namespace annulus::cuda {
namespace {

// output {rows, units'} = input {rows, features'} weights^T. The rows of a dense layer are the samples, and the
// features of an image are its values in memory order. Those of a linear layer are all positions before the last
// dimension.
class DenseOp : public Op {
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
        rows_(layer.rows),
        features_(channels_last(input).count() / rows_),
        units_(channels_last(layer.output).channels()) {
    info_.output = layer.output;
    info_.inputs = {{.adds_to_gradient = true}};
    info_.backward_reads_output = layer.relu;
    info_.skips_parameter_gradients = true;
    info_.parameters = {weights_spec(layer.parameters[0].shape, context.type())};
    if (bias_) info_.parameters.push_back(channels_spec(layer.parameters[1].shape, context.type()));
    forward_ = context_.matmuls->plan({.precision = context_.precision,
                                       .rows = rows_,
                                       .columns = units_,
                                       .inner = features_,
                                       .b_transposed = true,
                                       .bias = bias_,
                                       .relu = layer.relu});
    if (mode == Mode::inference) return;
    backward_weights_ = context_.matmuls->plan({.precision = context_.precision,
                                                .rows = units_,
                                                .columns = features_,
                                                .inner = rows_,
                                                .a_transposed = true,
                                                .wide_output = true});
    ending_ = std::make_unique<BiasRelu>(bias_, layer.relu, rows_, units_, context);
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    weights_ = context_.type() == DataType::f32 ? bindings.parameters[0] : bindings.copies[0];
    std::size_t bytes = forward_->workspace_bytes();
    if (mode_ == Mode::training) {
      bytes = std::max({bytes, ending_->workspace_bytes(), backward_weights_->workspace_bytes()});
      // Planned only now, because the bindings determine whether it accumulates.
      if (bindings.input_gradients[0])
        backward_data_ = context_.matmuls->plan({.precision = context_.precision,
                                                 .rows = rows_,
                                                 .columns = features_,
                                                 .inner = units_,
                                                 .accumulate = bindings.accumulates(0)});
      if (backward_data_) bytes = std::max(bytes, backward_data_->workspace_bytes());
    }
    workspace_ = context_.workspace(bytes);
  }

  void forward() override {
    forward_->run(bindings_.inputs[0].address, weights_.address, bias(bindings_.parameters), bindings_.output.address,
                  nullptr, workspace_, lane());
  }

  void backward(float) override {
    std::byte* gradient = bindings_.output_gradient.address;
    ending_->backward(bindings_.output.address, gradient, bias(bindings_.parameter_gradients), workspace_);
    if (bindings_.parameter_gradients[0])
      backward_weights_->run(gradient, bindings_.inputs[0].address, nullptr, bindings_.parameter_gradients[0].address,
                             context_.unscale, workspace_, lane());
    if (backward_data_)
      backward_data_->run(gradient, weights_.address, nullptr, bindings_.input_gradients[0].address, nullptr,
                          workspace_, lane());
  }

 private:
  float* bias(const std::vector<DeviceView>& of) const {
    return bias_ ? reinterpret_cast<float*>(of[1].address) : nullptr;
  }
  cudaStream_t lane() const { return context_.lane.get(); }

  Mode mode_;
  Context& context_;
  bool bias_;
  std::size_t rows_, features_, units_;
  std::unique_ptr<Matmul> forward_, backward_weights_, backward_data_;  // backward_data_ is null if not needed
  std::unique_ptr<BiasRelu> ending_;                                    // for its backward pass
  Bindings bindings_;
  DeviceView weights_;  // in the value type
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
