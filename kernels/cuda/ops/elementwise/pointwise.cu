#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

template <class T>
__global__ void rectify(Predecessor previous, const T* input, T* output, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Vector<T> values = load(input, i);
    for (float& value : values.at) value = relu(value);
    store(values, output, i);
  }
}

template <class T>
__global__ void rectify_backward(Predecessor previous, const T* output, const T* output_gradient, InputGradient<T> to,
                                 std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Vector<T> out = load(output, i);
    Vector<T> gradient = load(output_gradient, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) gradient.at[k] = out.at[k] > 0 ? gradient.at[k] : 0;
    to.put(gradient, i);
  }
}

template <class T>
__global__ void hand_on(Predecessor previous, const T* gradient, InputGradient<T> to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) to.put(load(gradient, i), i);
}

// An operation on tensors with the same layout that processes each vector separately.
template <class T>
class PointwiseOp : public Op {
 public:
  PointwiseOp(const TensorSpec& input, std::size_t inputs, Context& context)
      : context_(context), vectors_(channels_last(input).bytes() / kVectorBytes) {
    info_.output = input;
    // Each value is read before the result replaces it.
    info_.inputs.assign(inputs, {.backward_reads = false,
                                 .output_may_overwrite = true,
                                 .gradient_may_overwrite = true,
                                 .adds_to_gradient = true});
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

 protected:
  template <class... Parameters, class... Arguments>
  void run(void (*kernel)(Parameters...), Arguments... arguments) const {
    over_vectors(kernel, vectors_, context_, arguments...);
  }

  Bindings bindings_;

 private:
  Context& context_;
  std::size_t vectors_;
};

template <class T>
class ReluOp : public PointwiseOp<T> {
 public:
  ReluOp(const TensorSpec& input, Context& context) : PointwiseOp<T>(input, 1, context) {}

  void forward() override {
    const Bindings& b = this->bindings_;
    this->run(rectify<T>, data<T>(b.inputs[0]), data<T>(b.output));
  }

  void backward(float) override {
    const Bindings& b = this->bindings_;
    if (const InputGradient<T> to(b, 0); to.wanted())
      this->run(rectify_backward<T>, data<T>(b.output), data<T>(b.output_gradient), to);
  }
};

template <class T>
class AddOp : public PointwiseOp<T> {
 public:
  AddOp(const TensorSpec& input, Context& context) : PointwiseOp<T>(input, 2, context) {
    this->info_.backward_reads_output = false;
    for (InputUse& use : this->info_.inputs) use.gradient_is_outputs = true;
  }

  void forward() override {
    const Bindings& b = this->bindings_;
    this->run(add_vectors<T>, data<T>(b.inputs[0]), data<T>(b.inputs[1]), data<T>(b.output));
  }

  void backward(float) override {
    const Bindings& b = this->bindings_;
    for (const std::size_t input : {0, 1})
      if (const InputGradient<T> to(b, input); to.wanted() && !to.is(b.output_gradient))
        this->run(hand_on<T>, data<T>(b.output_gradient), to);
  }
};

}  // namespace

std::unique_ptr<Op> plan(const Relu&, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, ReluOp>(context.type(), inputs[0], context);
}

std::unique_ptr<Op> plan(const Add&, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, AddOp>(context.type(), inputs[0], context);
}

}  // namespace annulus::cuda
