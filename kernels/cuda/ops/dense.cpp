#include <algorithm>

#include "kernels/cuda/ops/bias.h"
#include "kernels/cuda/ops/operations.h"
#include "kernels/cuda/runtime/layout.h"

namespace annulus::cuda {
namespace {

// output {batch, units'} = input {batch, features} weights^T. The features of an image are its values in memory order.
class DenseOp : public Op {
 public:
  DenseOp(const Dense& operation, const Specs& inputs, Mode mode, Context& context)
      : mode_(mode),
        context_(context),
        batch_(inputs[0].shape[0]),
        features_(channels_last(inputs[0]).count() / batch_) {
    info_.output = value_spec(output_shape(Operation(operation), {inputs[0].shape}), context.type());
    info_.inputs = {{.adds_to_gradient = true}};
    info_.backward_reads_output = operation.relu;
    info_.skips_parameter_gradients = true;
    units_ = channels_last(info_.output).channels();
    const auto declared = annulus::parameters(Operation(operation), {inputs[0].shape});
    info_.parameters = {weights_spec(declared[0].shape, context.type()),
                        channels_spec(declared[1].shape, context.type())};
    forward_ = context_.matmuls->plan({.precision = context_.precision,
                                       .rows = batch_,
                                       .columns = units_,
                                       .inner = features_,
                                       .b_transposed = true,
                                       .bias = true,
                                       .relu = operation.relu});
    if (mode == Mode::inference) return;
    backward_weights_ = context_.matmuls->plan({.precision = context_.precision,
                                                .rows = units_,
                                                .columns = features_,
                                                .inner = batch_,
                                                .a_transposed = true,
                                                .wide_output = true});
    ending_ = std::make_unique<BiasRelu>(true, operation.relu, batch_, units_, context);
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
                                                 .rows = batch_,
                                                 .columns = features_,
                                                 .inner = units_,
                                                 .accumulate = !bindings.accumulate.empty() && bindings.accumulate[0]});
      if (backward_data_) bytes = std::max(bytes, backward_data_->workspace_bytes());
    }
    workspace_ = context_.workspace(bytes);
  }

  void forward() override {
    forward_->run(bindings_.inputs[0].address, weights_.address, floats(bindings_.parameters[1]),
                  bindings_.output.address, nullptr, workspace_, lane());
  }

  void backward(float) override {
    std::byte* gradient = bindings_.output_gradient.address;
    ending_->backward(bindings_.output.address, gradient, floats(bindings_.parameter_gradients[1]), workspace_);
    if (bindings_.parameter_gradients[0])
      backward_weights_->run(gradient, bindings_.inputs[0].address, nullptr, bindings_.parameter_gradients[0].address,
                             context_.unscale, workspace_, lane());
    if (backward_data_)
      backward_data_->run(gradient, weights_.address, nullptr, bindings_.input_gradients[0].address, nullptr,
                          workspace_, lane());
  }

 private:
  static float* floats(DeviceView view) { return reinterpret_cast<float*>(view.address); }
  cudaStream_t lane() const { return context_.lane.get(); }

  Mode mode_;
  Context& context_;
  std::size_t batch_, features_, units_ = 0;
  std::unique_ptr<Matmul> forward_, backward_weights_, backward_data_;  // backward_data_ is null if not needed
  std::unique_ptr<BiasRelu> ending_;                                    // for its backward pass
  Bindings bindings_;
  DeviceView weights_;  // in the value type
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const Dense& operation, const Specs& inputs, Mode mode, Context& context) {
  return std::make_unique<DenseOp>(operation, inputs, mode, context);
}

}  // namespace annulus::cuda
