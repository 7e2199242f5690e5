#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

// With s = bias + factor (the window's sum of squares) and factor = alpha / size: y = x s^-beta, and dx_c = dy_c
// s_c^-beta - 2 factor beta x_c (sum over the windows w that contain c: dy_w x_w s_w^(-beta - 1)).
struct Norm {
  unsigned size, channels, in_pixel;  // a pixel's channels, without and with padding
  float factor, beta, bias;

  // A window is `size` channels from (size - 1) / 2 before `channel`, as ONNX has it. Calls body(channel) for them, or
  // if `mirrored`, for the channels that have this channel in their windows.
  template <class Body>
  __device__ void for_each(unsigned channel, bool mirrored, const Body& body) const {
    const unsigned before = mirrored ? size / 2 : (size - 1) / 2;
    const unsigned begin = channel > before ? channel - before : 0;
    const unsigned end = channel + size - before < channels ? channel + size - before : channels;
    for (unsigned c = begin; c < end; ++c) body(c);
  }

  template <class T>
  __device__ float scale(const T* pixel, unsigned channel) const {
    float squares = 0;
    for_each(channel, false, [&](unsigned c) {
      const auto value = static_cast<float>(pixel[c]);
      squares += value * value;
    });
    return bias + factor * squares;
  }
};

template <class T>
__global__ void normalize(Predecessor previous, Norm norm, const T* input, T* output, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const std::size_t pixel = i * kLanes<T> / norm.in_pixel * norm.in_pixel;
    const auto first = static_cast<unsigned>(i * kLanes<T> - pixel);
    Vector<T> values = load(input, i);
    for (unsigned k = 0; k < kLanes<T>; ++k)
      if (first + k < norm.channels) values.at[k] *= powf(norm.scale(input + pixel, first + k), -norm.beta);
    store(values, output, i);
  }
}

template <class T>
__global__ void normalize_backward(Predecessor previous, Norm norm, const T* input, const T* output_gradient,
                                   InputGradient<T> to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const std::size_t pixel = i * kLanes<T> / norm.in_pixel * norm.in_pixel;
    const auto first = static_cast<unsigned>(i * kLanes<T> - pixel);
    const T *x = input + pixel, *dy = output_gradient + pixel;
    const Vector<T> values = load(input, i);
    Vector<T> gradient = load(output_gradient, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) {
      if (first + k >= norm.channels) continue;
      float sum = 0;
      norm.for_each(first + k, true, [&](unsigned c) {
        sum += static_cast<float>(dy[c]) * static_cast<float>(x[c]) * powf(norm.scale(x, c), -norm.beta - 1);
      });
      gradient.at[k] = gradient.at[k] * powf(norm.scale(x, first + k), -norm.beta) -
                       2 * norm.factor * norm.beta * values.at[k] * sum;
    }
    to.put(gradient, i);
  }
}

template <class T>
class LocalResponseNormOp : public Op {
 public:
  LocalResponseNormOp(const LocalResponseNorm& o, const TensorSpec& input, Context& context)
      : context_(context), vectors_(vectors_of(channels_last(input))) {
    info_.output = input;
    info_.inputs = {{.adds_to_gradient = true}};
    info_.backward_reads_output = false;
    norm_ = {.size = static_cast<unsigned>(o.size),
             .channels = static_cast<unsigned>(input.shape[1]),
             .in_pixel = static_cast<unsigned>(channels_last(input).channels()),
             .factor = o.alpha / static_cast<float>(o.size),
             .beta = o.beta,
             .bias = o.bias};
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    over_vectors(normalize<T>, vectors_, context_, norm_, data<T>(bindings_.inputs[0]), data<T>(bindings_.output));
  }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      over_vectors(normalize_backward<T>, vectors_, context_, norm_, data<T>(bindings_.inputs[0]),
                   data<T>(bindings_.output_gradient), to);
  }

 private:
  Context& context_;
  std::size_t vectors_;
  Norm norm_;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const LocalResponseNorm& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, LocalResponseNormOp>(context.type(), operation, inputs[0], context);
}

}  // namespace annulus::cuda
