// Mean, and Expand, the counterpart: either sums what the other repeats.

#include <algorithm>

#include "kernels/cuda/ops/loops/sums.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

template <class T>
struct Scaled {
  const T* values;
  float factor;

  __device__ Vector<T> operator()(const Operands<1>& operands) const {
    Vector<T> result = load(values, operands.of[0]);
    for (float& value : result.at) value *= factor;
    return result;
  }
};

// Two tensors, `large` and `small`, with the same dimensions, except that some are 1 in `small`.
template <class T>
class Repetition {
 public:
  Repetition(const TensorSpec& large, const TensorSpec& small, float factor, Context& context)
      : factor_(factor),
        context_(context),
        sum_(large.shape, small, {strides_of(large)}, context),
        repeat_(large.shape, large, {repeated(small, large.shape)}, context) {}

  void bind() { workspace_ = context_.workspace(sum_.workspace_bytes()); }

  // small = factor * (large summed); large = factor * small.
  void sum(DeviceView large, const InputGradient<T>& small) const { run(sum_, large, small); }
  void repeat(DeviceView small, const InputGradient<T>& large) const { run(repeat_, small, large); }

 private:
  void run(const SumOver<T, 1>& over, DeviceView from, const InputGradient<T>& to) const {
    over.run(Scaled<T>{data<T>(from), factor_}, to, workspace_);
  }

  float factor_;
  Context& context_;
  SumOver<T, 1> sum_, repeat_;
  void* workspace_ = nullptr;
};

template <class T>
InputGradient<T> written(DeviceView to) {
  InputGradient<T> target;
  target.values = data<T>(to);
  return target;
}

template <class T>
class MeanOp : public Op {
 public:
  MeanOp(const TensorSpec& input, const TensorSpec& output, const TensorSpec& kept, Context& context)
      : repetition_(input, kept, static_cast<float>(elements(kept.shape)) / static_cast<float>(elements(input.shape)),
                    context) {
    info_.output = output;
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    repetition_.bind();
  }
  void forward() override { repetition_.sum(bindings_.inputs[0], written<T>(bindings_.output)); }
  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted()) repetition_.repeat(bindings_.output_gradient, to);
  }

 private:
  Repetition<T> repetition_;
  Bindings bindings_;
};

template <class T>
class ExpandOp : public Op {
 public:
  ExpandOp(const TensorSpec& input, const TensorSpec& output, Context& context)
      : repetition_(output, input, 1, context) {
    info_.output = output;
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}, {.backward_reads = false}};
    info_.backward_reads_output = false;
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    repetition_.bind();
  }
  void forward() override { repetition_.repeat(bindings_.inputs[0], written<T>(bindings_.output)); }
  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted()) repetition_.sum(bindings_.output_gradient, to);
  }

 private:
  Repetition<T> repetition_;
  Bindings bindings_;
};

}  // namespace

// The output has the input's channels if they are not averaged. Without the averaged dimensions it is the same memory
// as with them.
std::unique_ptr<Op> plan(const Mean& operation, const Specs& inputs, Mode, Context& context) {
  const TensorSpec& in = inputs[0];
  const Shape shape = operation.output_shape({in.shape});
  const Shape kept_shape = Mean{operation.axes, true}.output_shape({in.shape});
  std::vector<std::size_t> left;  // the output's dimensions among the input's
  for (std::size_t i = 0; i < in.shape.size(); ++i)
    if (operation.keep || std::ranges::find(operation.axes, i) == operation.axes.end()) left.push_back(i);
  const auto channels = std::ranges::find(left, channels_last(in).axis());
  const std::size_t axis = channels == left.end() || (channels == left.begin() && left.size() > 1)
                               ? channel_axis(shape)
                               : static_cast<std::size_t>(channels - left.begin());
  const TensorSpec output = value_spec(shape, context.type(), axis);
  const TensorSpec kept = value_spec(kept_shape, context.type(), left.empty() ? 0 : left[axis]);
  return make_for<Op, MeanOp>(context.type(), in, output, kept, context);
}

std::unique_ptr<Op> plan(const Expand& operation, const Specs& inputs, Mode, Context& context) {
  const Shape shape = operation.output_shape({inputs[0].shape, inputs[1].shape});
  return make_for<Op, ExpandOp>(context.type(), inputs[0],
                                value_spec(shape, context.type(), channels_last(inputs[0]).axis()), context);
}

}  // namespace annulus::cuda
