#include "kernels/cuda/ops/loops/elementwise.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/runtime/number.h"

namespace annulus::cuda {
namespace {

void copy(DeviceView from, DeviceView to, const Context& context) {
  check(cudaMemcpyAsync(to.address, from.address, to.bytes, cudaMemcpyDeviceToDevice, context.lane.get()));
}

// The parameter has the output's order, so the copy in the value type is the output.
class LearnedOp : public Op {
 public:
  LearnedOp(const Learned& operation, Context& context) : context_(context) {
    info_.output = value_spec(operation.output_shape({}), context.type());
    info_.parameters = {channels_spec(operation.output_shape({}), context.type())};
    info_.backward_reads_output = false;
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    copy(context_.type() == DataType::f32 ? bindings_.parameters[0] : bindings_.copies[0], output(), context_);
  }

  void backward(float) override {
    const DeviceView gradient = bindings_.parameter_gradients[0].slice(0, info_.parameters[0].layout->bytes());
    widen(bindings_.output_gradient.address, gradient, context_.unscale, context_);
  }

 private:
  DeviceView output() const { return bindings_.output.slice(0, info_.output.layout->bytes()); }

  Context& context_;
  Bindings bindings_;
};

class ConstantOp : public Op {
 public:
  ConstantOp(const Constant& operation, Context& context) : context_(context) {
    info_.output = value_spec(operation.output_shape({}), context.type());
    info_.backward_reads_output = false;
    const ChannelsLast& layout = channels_last(info_.output);
    std::vector<float> packed(layout.count());
    layout.pack(operation.values, packed);
    values_ = to_device(encode(packed, context.type()));
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }
  void forward() override { copy(values_.view(), bindings_.output.slice(0, values_.view().bytes), context_); }
  void backward(float) override {}

 private:
  Context& context_;
  Buffer values_;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Learned& operation, const Specs&, Mode, Context& context) {
  return std::make_unique<LearnedOp>(operation, context);
}

std::unique_ptr<Op> plan(const Constant& operation, const Specs&, Mode, Context& context) {
  return std::make_unique<ConstantOp>(operation, context);
}

}  // namespace annulus::cuda
