#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/row_warps.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

template <class T>
__global__ void softmax(Predecessor previous, Rows rows, const T* input, T* output) {
  await(previous);
  rows.for_each([&](std::size_t row) {
    const std::size_t begin = row * rows.vectors;
    float largest = -INFINITY, sum = 0;
    rows.for_each_vector<T>([&](unsigned vector, unsigned used) {
      const Vector<T> values = load(input, begin + vector);
      for (unsigned k = 0; k < used; ++k) largest = fmaxf(largest, values.at[k]);
    });
    largest = warp_max(largest);
    rows.for_each_vector<T>([&](unsigned vector, unsigned used) {
      const Vector<T> values = load(input, begin + vector);
      for (unsigned k = 0; k < used; ++k) sum += expf(values.at[k] - largest);
    });
    const float factor = 1 / warp_sum(sum);
    rows.for_each_vector<T>([&](unsigned vector, unsigned used) {
      Vector<T> values = load(input, begin + vector);
      for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] = k < used ? factor * expf(values.at[k] - largest) : 0;
      store(values, output, begin + vector);
    });
  });
}

// dx = y (dy - sum(y dy)).
template <class T>
__global__ void softmax_backward(Predecessor previous, Rows rows, const T* output, const T* output_gradient,
                                 InputGradient<T> to) {
  await(previous);
  rows.for_each([&](std::size_t row) {
    const std::size_t begin = row * rows.vectors;
    float sum = 0;
    rows.for_each_vector<T>([&](unsigned vector, unsigned) {
      const Vector<T> y = load(output, begin + vector), dy = load(output_gradient, begin + vector);
      for (unsigned k = 0; k < kLanes<T>; ++k) sum += y.at[k] * dy.at[k];
    });
    sum = warp_sum(sum);
    rows.for_each_vector<T>([&](unsigned vector, unsigned used) {
      const Vector<T> y = load(output, begin + vector);
      Vector<T> dy = load(output_gradient, begin + vector);
      for (unsigned k = 0; k < kLanes<T>; ++k) dy.at[k] = k < used ? y.at[k] * (dy.at[k] - sum) : 0;
      to.put(dy, begin + vector);
    });
  });
}

template <class T>
class SoftmaxOp : public Op {
 public:
  SoftmaxOp(const TensorSpec& input, Context& context) : context_(context) {
    const ChannelsLast& layout = channels_last(input);
    info_.output = input;
    // Each vector is read for the last time before the result replaces it.
    info_.inputs = {{.backward_reads = false,
                     .output_may_overwrite = true,
                     .gradient_may_overwrite = true,
                     .adds_to_gradient = true}};
    rows_ = {layout.rows(), static_cast<unsigned>(layout.channels() / kLanes<T>),
             static_cast<unsigned>(input.shape.back()), static_cast<unsigned>(layout.channels())};
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    over_rows(softmax<T>, rows_, context_, data<T>(bindings_.inputs[0]), data<T>(bindings_.output));
  }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      over_rows(softmax_backward<T>, rows_, context_, data<T>(bindings_.output), data<T>(bindings_.output_gradient),
                to);
  }

 private:
  Context& context_;
  Rows rows_;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Softmax&, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, SoftmaxOp>(context.type(), inputs[0], context);
}

}  // namespace annulus::cuda
