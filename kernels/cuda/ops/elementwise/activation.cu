#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

// Returns 0 instead of subnormal numbers.
__device__ inline float exponential(float x) {
  return x < -87.3f ? 0 : expf(x);
}

__device__ inline float logistic(float x) {
  return 1 / (1 + exponential(-x));
}

// Each function has a value and a derivative. NaN passes. If the derivative may be infinite, a gradient of 0 stays 0:
// it belongs to a branch that was not chosen.
struct LinearFunction {
  float alpha, beta;
  __device__ float value(float x) const { return alpha * x + beta; }
  __device__ float slope(float) const { return alpha; }
};

struct Clip {
  float least, largest;
  __device__ float value(float x) const { return x < least ? least : x > largest ? largest : x; }
  __device__ float slope(float x) const { return x > least && x < largest ? 1 : 0; }
};

struct LeakyRelu {
  float alpha;
  __device__ float value(float x) const { return x < 0 ? alpha * x : x; }
  __device__ float slope(float x) const { return x > 0 ? 1 : alpha; }
};

struct Elu {
  float alpha;
  __device__ float value(float x) const { return x < 0 ? alpha * expm1f(x) : x; }
  __device__ float slope(float x) const { return x > 0 ? 1 : alpha * exponential(x); }
};

struct Sigmoid {
  __device__ float value(float x) const { return logistic(x); }
  __device__ float slope(float x) const {
    const float s = logistic(x);
    return s * (1 - s);
  }
};

struct Tanh {
  __device__ float value(float x) const { return tanhf(x); }
  __device__ float slope(float x) const {
    const float t = tanhf(x);
    return 1 - t * t;
  }
};

struct Silu {
  __device__ float value(float x) const { return x * logistic(x); }
  __device__ float slope(float x) const {
    const float s = logistic(x);
    return s + x * s * (1 - s);
  }
};

struct Gelu {
  static constexpr float kRoot = 0.7071067812f, kDensity = 0.3989422804f;  // sqrt(1 / 2), sqrt(1 / (2 pi))
  __device__ static float distribution(float x) { return 0.5f + 0.5f * erff(kRoot * x); }
  __device__ float value(float x) const { return x * distribution(x); }
  __device__ float slope(float x) const { return distribution(x) + x * kDensity * exponential(-0.5f * x * x); }
};

struct GeluTanh {
  static constexpr float kScale = 0.7978845608f, kCube = 0.044715f;  // sqrt(2 / pi)
  __device__ float value(float x) const { return 0.5f * x * (1 + tanhf(kScale * (x + kCube * x * x * x))); }
  __device__ float slope(float x) const {
    const float t = tanhf(kScale * (x + kCube * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kScale * (1 + 3 * kCube * x * x);
  }
};

// tanh(log(1 + e^x)) = e^x (e^x + 2) / (e^x (e^x + 2) + 2), which is 1 from 20 on.
struct Mish {
  __device__ static float inner(float x) {
    const float e = exponential(x > 20 ? 20 : x);
    return e * (e + 2) / (e * (e + 2) + 2);
  }
  __device__ float value(float x) const { return x * inner(x); }
  __device__ float slope(float x) const {
    const float t = inner(x);
    return t + x * (1 - t * t) * logistic(x);
  }
};

struct Softplus {
  __device__ float value(float x) const { return (x < 0 ? 0 : x) + log1pf(exponential(-fabsf(x))); }
  __device__ float slope(float x) const { return logistic(x); }
};

struct HardSigmoid {
  float alpha, beta;
  __device__ float value(float x) const { return Clip{0, 1}.value(alpha * x + beta); }
  __device__ float slope(float x) const { return alpha * Clip{0, 1}.slope(alpha * x + beta); }
};

struct HardSwish {
  __device__ float value(float x) const { return x * Clip{0, 1}.value(x / 6 + 0.5f); }
  __device__ float slope(float x) const { return x < -3 ? 0 : x > 3 ? 1 : x / 3 + 0.5f; }
};

struct Absolute {
  __device__ float value(float x) const { return fabsf(x); }
  __device__ float slope(float x) const { return x > 0 ? 1 : x < 0 ? -1 : 0; }
};

struct Exponential {
  __device__ float value(float x) const { return exponential(x); }
  __device__ float slope(float x) const { return exponential(x); }
};

struct Logarithm {
  __device__ float value(float x) const { return logf(x); }
  __device__ float slope(float x) const { return 1 / x; }
};

struct SquareRoot {
  __device__ float value(float x) const { return sqrtf(x); }
  __device__ float slope(float x) const { return 0.5f / sqrtf(x); }
};

struct Square {
  __device__ float value(float x) const { return x * x; }
  __device__ float slope(float x) const { return 2 * x; }
};

struct Reciprocal {
  __device__ float value(float x) const { return 1 / x; }
  __device__ float slope(float x) const { return -1 / (x * x); }
};

struct Sign {
  __device__ float value(float x) const { return x > 0 ? 1 : x < 0 ? -1 : x; }
  __device__ float slope(float) const { return 0; }
};

template <class Function>
constexpr bool kUnbounded = std::is_same_v<Function, Exponential> || std::is_same_v<Function, Logarithm> ||
                            std::is_same_v<Function, SquareRoot> || std::is_same_v<Function, Reciprocal>;

// Calls use(function). Every thread takes the same branch, once for each vector.
template <class Use>
__device__ void with_function(const Activation& o, const Use& use) {
  using enum Activation::Function;
  switch (o.function) {
    case linear:
      return use(LinearFunction{o.alpha, o.beta});
    case clip:
      return use(Clip{o.alpha, o.beta});
    case leaky_relu:
      return use(LeakyRelu{o.alpha});
    case elu:
      return use(Elu{o.alpha});
    case sigmoid:
      return use(Sigmoid{});
    case tanh:
      return use(Tanh{});
    case silu:
      return use(Silu{});
    case gelu:
      return use(Gelu{});
    case gelu_tanh:
      return use(GeluTanh{});
    case mish:
      return use(Mish{});
    case softplus:
      return use(Softplus{});
    case hard_sigmoid:
      return use(HardSigmoid{o.alpha, o.beta});
    case hard_swish:
      return use(HardSwish{});
    case absolute:
      return use(Absolute{});
    case exponential:
      return use(Exponential{});
    case logarithm:
      return use(Logarithm{});
    case square_root:
      return use(SquareRoot{});
    case square:
      return use(Square{});
    case reciprocal:
      return use(Reciprocal{});
    case sign:
      return use(Sign{});
  }
}

// Rows of `vectors` vectors; elements from `channels` on are padding, which stays zero, also if f(0) is not.
struct Row {
  unsigned vectors, channels;

  __device__ unsigned used(std::size_t index, unsigned lanes) const {
    const unsigned first = static_cast<unsigned>(index % vectors) * lanes;
    return channels - first < lanes ? channels - first : lanes;
  }
};

template <class T>
__global__ void activate(Predecessor previous, Activation activation, Row row, const T* input, T* output,
                         std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Vector<T> values = load(input, i);
    const unsigned used = row.used(i, kLanes<T>);
    with_function(activation, [&](auto f) {
      for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] = k < used ? f.value(values.at[k]) : 0;
    });
    store(values, output, i);
  }
}

template <class T>
__global__ void activate_backward(Predecessor previous, Activation activation, Row row, const T* input,
                                  const T* output_gradient, InputGradient<T> to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Vector<T> values = load(input, i);
    Vector<T> gradient = load(output_gradient, i);
    const unsigned used = row.used(i, kLanes<T>);
    with_function(activation, [&](auto f) {
      for (unsigned k = 0; k < kLanes<T>; ++k) {
        const bool zero = k >= used || (kUnbounded<decltype(f)> && gradient.at[k] == 0);
        gradient.at[k] = zero ? 0 : gradient.at[k] * f.slope(values.at[k]);
      }
    });
    to.put(gradient, i);
  }
}

template <class T>
class ActivationOp : public Op {
 public:
  ActivationOp(const Activation& operation, const TensorSpec& input, Context& context)
      : context_(context), operation_(operation), vectors_(channels_last(input).bytes() / kVectorBytes) {
    const ChannelsLast& layout = channels_last(input);
    info_.output = input;
    info_.inputs = {{.output_may_overwrite = true, .gradient_may_overwrite = true, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    row_ = {static_cast<unsigned>(layout.channels() / kLanes<T>),
            static_cast<unsigned>(input.shape.empty() ? 1 : input.shape[layout.axis()])};
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    over_vectors(activate<T>, vectors_, context_, operation_, row_, data<T>(bindings_.inputs[0]),
                 data<T>(bindings_.output));
  }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      over_vectors(activate_backward<T>, vectors_, context_, operation_, row_, data<T>(bindings_.inputs[0]),
                   data<T>(bindings_.output_gradient), to);
  }

 private:
  Context& context_;
  Activation operation_;
  std::size_t vectors_;
  Row row_;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Activation& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, ActivationOp>(context.type(), operation, inputs[0], context);
}

}  // namespace annulus::cuda
