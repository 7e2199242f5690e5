#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/row_warps.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

// An output row is a single element, padded to `out` vectors. NaN passes.
template <class T>
__global__ void maximum(Predecessor previous, Rows rows, unsigned out, const T* input, T* output) {
  await(previous);
  rows.for_each([&](std::size_t row) {
    float largest = -INFINITY, nan = 0;
    rows.for_each_vector<T>([&](unsigned vector, unsigned used) {
      const Vector<T> values = load(input, row * rows.vectors + vector);
      for (unsigned k = 0; k < used; ++k) {
        largest = fmaxf(largest, values.at[k]);
        if (values.at[k] != values.at[k]) nan = 1;
      }
    });
    largest = warp_max(largest);
    nan = warp_max(nan);
    for (unsigned vector = threadIdx.x; vector < out; vector += Rows::kWarp) {
      Vector<T> values{};
      if (vector == 0) values.at[0] = nan > 0 ? NAN : largest;
      store(values, output, row * out + vector);
    }
  });
}

template <class T>
__global__ void maximum_backward(Predecessor previous, Rows rows, unsigned out, const T* input, const T* output,
                                 const T* output_gradient, InputGradient<T> to) {
  await(previous);
  rows.for_each([&](std::size_t row) {
    const std::size_t begin = row * rows.vectors;
    const float y = load(output, row * out).at[0], dy = load(output_gradient, row * out).at[0];
    float equal = 0;
    rows.for_each_vector<T>([&](unsigned vector, unsigned used) {
      const Vector<T> x = load(input, begin + vector);
      for (unsigned k = 0; k < used; ++k) equal += x.at[k] == y ? 1.0f : 0.0f;
    });
    const float part = dy / fmaxf(warp_sum(equal), 1);
    rows.for_each_vector<T>([&](unsigned vector, unsigned used) {
      Vector<T> x = load(input, begin + vector);
      for (unsigned k = 0; k < kLanes<T>; ++k) x.at[k] = k < used && x.at[k] == y ? part : 0;
      to.put(x, begin + vector);
    });
  });
}

template <class T>
class MaximumOp : public Op {
 public:
  MaximumOp(const Maximum& operation, const TensorSpec& input, Context& context) : context_(context) {
    const ChannelsLast& layout = channels_last(input);
    const Shape shape = operation.output_shape({input.shape});
    info_.output = value_spec(shape, context.type(), shape.size() - 1);
    info_.inputs = {{.adds_to_gradient = true}};
    rows_ = {layout.rows(), static_cast<unsigned>(layout.channels() / kLanes<T>),
             static_cast<unsigned>(input.shape.back()), static_cast<unsigned>(layout.channels())};
    out_ = static_cast<unsigned>(channels_last(info_.output).channels() / kLanes<T>);
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    over_rows(maximum<T>, rows_, context_, out_, data<T>(bindings_.inputs[0]), data<T>(bindings_.output));
  }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      over_rows(maximum_backward<T>, rows_, context_, out_, data<T>(bindings_.inputs[0]), data<T>(bindings_.output),
                data<T>(bindings_.output_gradient), to);
  }

 private:
  Context& context_;
  Rows rows_;
  unsigned out_ = 1;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Maximum& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, MaximumOp>(context.type(), operation, inputs[0], context);
}

}  // namespace annulus::cuda
