#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/error.h"
#include "kernels/cpu/loops/for_each_element.h"
#include "kernels/cpu/loops/math.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

// Each function has a value and a derivative. If the derivative may be infinite, a gradient of 0 stays 0: it belongs to
// a branch that was not chosen.
struct LinearFunction {
  float alpha, beta;
  float value(float x) const { return alpha * x + beta; }
  float slope(float) const { return alpha; }
};

struct Clip {
  float least, largest;
  float value(float x) const { return x < least ? least : x > largest ? largest : x; }
  float slope(float x) const { return (x > least) & (x < largest) ? 1.0f : 0.0f; }
};

struct LeakyRelu {
  float alpha;
  float value(float x) const { return x < 0 ? alpha * x : x; }
  float slope(float x) const { return x > 0 ? 1 : alpha; }
};

struct Elu {
  float alpha;
  float value(float x) const {
    const float near_zero = x + 0.5f * x * x + x * x * x / 6;  // where the subtraction would cancel
    return x < 0 ? alpha * (x > -0.01f ? near_zero : exponential(x) - 1) : x;
  }
  float slope(float x) const { return x > 0 ? 1 : alpha * exponential(x); }
};

struct Sigmoid {
  static float value(float x) { return logistic(x); }
  static float slope(float x) {
    const float s = logistic(x);
    return s * (1 - s);
  }
};

struct Tanh {
  static float value(float x) { return hyperbolic_tangent(x); }
  static float slope(float x) {
    const float t = hyperbolic_tangent(x);
    return 1 - t * t;
  }
};

struct Silu {
  static float value(float x) { return x * logistic(x); }
  static float slope(float x) {
    const float s = logistic(x);
    return s + x * s * (1 - s);
  }
};

struct Gelu {
  static float distribution(float x) { return 0.5f + 0.5f * error_function(x * (std::numbers::sqrt2_v<float> / 2)); }
  static float value(float x) { return x * distribution(x); }
  static float slope(float x) {
    constexpr float kDensity = std::numbers::inv_sqrtpi_v<float> / std::numbers::sqrt2_v<float>;
    return distribution(x) + x * kDensity * exponential(-0.5f * x * x);
  }
};

struct GeluTanh {
  static constexpr float kScale = 0.7978845608f, kCube = 0.044715f;  // sqrt(2 / pi)
  static float value(float x) { return 0.5f * x * (1 + hyperbolic_tangent(kScale * (x + kCube * x * x * x))); }
  static float slope(float x) {
    const float t = hyperbolic_tangent(kScale * (x + kCube * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kScale * (1 + 3 * kCube * x * x);
  }
};

// tanh(log(1 + e^x)) = e^x (e^x + 2) / (e^x (e^x + 2) + 2), which is 1 from 20 on.
struct Mish {
  static float inner(float x) {
    const float e = exponential(x > 20 ? 20.0f : x);
    return e * (e + 2) / (e * (e + 2) + 2);
  }
  static float value(float x) { return x * inner(x); }
  static float slope(float x) {
    const float t = inner(x);
    return t + x * (1 - t * t) * logistic(x);
  }
};

struct Softplus {
  static float value(float x) { return std::max(x, 0.0f) + logarithm_of_one_plus(exponential(-std::abs(x))); }
  static float slope(float x) { return logistic(x); }
};

struct HardSigmoid {
  float alpha, beta;
  float value(float x) const { return Clip{0, 1}.value(alpha * x + beta); }
  float slope(float x) const { return alpha * Clip{0, 1}.slope(alpha * x + beta); }
};

struct HardSwish {
  static float value(float x) { return x * Clip{0, 1}.value(x / 6 + 0.5f); }
  static float slope(float x) {
    const float between = x / 3 + 0.5f;
    return x < -3 ? 0 : x > 3 ? 1 : between;
  }
};

struct Absolute {
  static float value(float x) { return std::abs(x); }
  static float slope(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
};

struct Exponential {
  static float value(float x) { return exponential(x); }
  static float slope(float x) { return exponential(x); }
};

struct Logarithm {
  static float value(float x) { return std::log(x); }
  static float slope(float x) { return 1 / x; }
};

struct SquareRoot {
  static float value(float x) { return std::sqrt(x); }
  static float slope(float x) { return 0.5f / std::sqrt(x); }
};

struct Square {
  static float value(float x) { return x * x; }
  static float slope(float x) { return 2 * x; }
};

struct Reciprocal {
  static float value(float x) { return 1 / x; }
  static float slope(float x) { return -1 / (x * x); }
};

struct Sign {
  static float value(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }
  static float slope(float) { return 0; }
};

template <class Function>
constexpr bool kUnbounded = std::is_same_v<Function, Exponential> || std::is_same_v<Function, Logarithm> ||
                            std::is_same_v<Function, SquareRoot> || std::is_same_v<Function, Reciprocal>;

// Sets a blocked layout's padding to zero, which kernels over flat arrays rely on.
void clear_padding(const TensorSpec& images, std::span<float> values) {
  if (images.shape.size() != 4) return;
  const ImageLayout layout = image_layout(images);
  const std::size_t used = images.shape[1] % layout.inner, blocks = layout.outer / images.shape[0];
  if (used == 0) return;
  const std::size_t pixels = layout.height * layout.width;
#pragma omp parallel for schedule(static)
  for (std::size_t image = 0; image < images.shape[0]; ++image) {
    float* plane = values.data() + ((image + 1) * blocks - 1) * pixels * layout.inner;
    for (std::size_t pixel = 0; pixel < pixels; ++pixel, plane += layout.inner)
      std::fill(plane + used, plane + layout.inner, 0.0f);
  }
}

template <class Function>
class ActivationOp : public Op {
 public:
  ActivationOp(const Function& function, const TensorSpec& input) : function_(function) {
    info_.output = input;
    info_.inputs = {{.gradient_may_overwrite = true}};
    info_.backward_reads_output = false;
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    const auto to = floats(bindings_.output);
    for_each_element(to.size(), [f = function_, in = floats(bindings_.inputs[0]).data(), out = to.data()](auto i) {
      out[i] = f.value(in[i]);
    });
    if (function_.value(0) != 0) clear_padding(info_.output, to);
  }

  void backward(float) override {
    const auto to = floats(bindings_.input_gradients[0]);
    for_each_element(to.size(), [f = function_, in = floats(bindings_.inputs[0]).data(),
                                 dy = floats(bindings_.output_gradient).data(), dx = to.data()](auto i) {
      const float product = dy[i] * f.slope(in[i]);
      dx[i] = kUnbounded<Function> && dy[i] == 0 ? 0 : product;
    });
    if (!std::isfinite(function_.slope(0))) clear_padding(info_.output, to);
  }

 private:
  Function function_;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Activation& o, const Specs& inputs, Mode, const Specs&) {
  const auto make = [&](const auto& function) -> std::unique_ptr<Op> {
    return std::make_unique<ActivationOp<std::decay_t<decltype(function)>>>(function, inputs[0]);
  };
  using enum Activation::Function;
  switch (o.function) {
    case linear:
      return make(LinearFunction{o.alpha, o.beta});
    case clip:
      return make(Clip{o.alpha, o.beta});
    case leaky_relu:
      return make(LeakyRelu{o.alpha});
    case elu:
      return make(Elu{o.alpha});
    case sigmoid:
      return make(Sigmoid{});
    case tanh:
      return make(Tanh{});
    case silu:
      return make(Silu{});
    case gelu:
      return make(Gelu{});
    case gelu_tanh:
      return make(GeluTanh{});
    case mish:
      return make(Mish{});
    case softplus:
      return make(Softplus{});
    case hard_sigmoid:
      return make(HardSigmoid{o.alpha, o.beta});
    case hard_swish:
      return make(HardSwish{});
    case absolute:
      return make(Absolute{});
    case exponential:
      return make(Exponential{});
    case logarithm:
      return make(Logarithm{});
    case square_root:
      return make(SquareRoot{});
    case square:
      return make(Square{});
    case reciprocal:
      return make(Reciprocal{});
    case sign:
      return make(Sign{});
  }
  fail("unknown activation {}", static_cast<int>(o.function));
}

}  // namespace annulus::cpu
