#include "src/onnx/patterns.h"

#include <array>
#include <cmath>
#include <numbers>

#include "src/onnx/layer_kinds.h"

#include "src/onnx/language_model.h"

namespace annulus {
namespace {

using Function = Activation::Function;
using enum Arithmetic::Operator;

// x (1 + erf(x / sqrt(2))), with any factor, and x as a line: twice GELU (Hendrycks and Gimpel, "Gaussian error linear
// units", 2016).
std::optional<Value> gelu(NodeReader& n, Value a, Value b) {
  const GraphBuilder& builder = n.builder();
  const Line outer = line(builder, b);
  if (builder.computed_by<Erf>(outer.x) == nullptr || !near(outer.alpha, outer.beta)) return std::nullopt;
  const Line inner = line(builder, builder.layer(outer.x).inputs[0]), other = line(builder, a);
  // The argument x is alpha inner.x + beta, and the other factor is a multiple of it.
  const double alpha = inner.alpha * std::numbers::sqrt2, beta = inner.beta * std::numbers::sqrt2;
  if (inner.x != other.x || alpha == 0 || !near(other.beta, other.alpha / alpha * beta)) return std::nullopt;
  const double slope = near(alpha, 1) ? 1 : alpha;
  const Value x = n.linear(inner.x, slope, beta);
  const double factor = 2 * outer.alpha * other.alpha / slope;
  return n.linear(n.function(Function::gelu, x), near(factor, 1) ? 1 : factor, 0);
}

// A polynomial's coefficients for 1, x, x^2 and x^3.
using Cubic = std::array<double, 4>;

std::optional<Cubic> product_of(const Cubic& a, const Cubic& b) {
  Cubic result{};
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < b.size(); ++k) {
      if (a[i] * b[k] == 0) continue;
      if (i + k >= result.size()) return std::nullopt;
      result[i + k] += a[i] * b[k];
    }
  return result;
}

Cubic sum_of(const Cubic& a, const Cubic& b) {
  return {a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]};
}

// Returns a value as a polynomial in x, if at most `depth` layers compute it from x in a chain.
std::optional<Cubic> cubic(const GraphBuilder& builder, Value value, Value x, int depth = 5) {
  if (value == x) return Cubic{0, 1};
  if (depth == 0 || !Graph::has_node(value)) return std::nullopt;
  const auto of_input = [&](std::size_t i) { return cubic(builder, builder.layer(value).inputs[i], x, depth - 1); };
  const bool sums = builder.computed_by<Add>(value) != nullptr || is_arithmetic(builder, value, sum);
  if (sums || is_arithmetic(builder, value, product)) {
    const auto a = of_input(0), b = a ? of_input(1) : a;
    if (!b) return std::nullopt;
    return sums ? sum_of(*a, *b) : product_of(*a, *b);
  }
  const Line outer = line(builder, value);
  const bool square = is_function(builder, value, Function::square);
  if (outer.x == value && !square) return std::nullopt;
  const auto a = of_input(0);
  if (!a) return std::nullopt;
  return square ? product_of(*a, *a) : sum_of(*product_of({outer.alpha}, *a), {outer.beta});
}

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), with any factor: twice GELU's approximation.
std::optional<Value> gelu_tanh(NodeReader& n, Value a, Value b) {
  const GraphBuilder& builder = n.builder();
  const Line outer = line(builder, b), other = line(builder, a);
  if (!is_function(builder, outer.x, Function::tanh) || !near(outer.alpha, outer.beta) || other.beta != 0)
    return std::nullopt;
  const auto inner = cubic(builder, builder.layer(outer.x).inputs[0], other.x);
  const double scale = std::sqrt(2 / std::numbers::pi);
  if (!inner || (*inner)[0] != 0 || (*inner)[2] != 0 || !near((*inner)[1], scale) ||
      !near((*inner)[3] / 0.044715, scale))
    return std::nullopt;
  const double factor = 2 * outer.alpha * other.alpha;
  return n.linear(n.function(Function::gelu_tanh, other.x), near(factor, 1) ? 1 : factor, 0);
}

// x times a function of x.
std::optional<Value> gated(NodeReader& n, Value x, Value gate) {
  const GraphBuilder& builder = n.builder();
  const auto* activation = builder.computed_by<Activation>(gate);
  if (activation == nullptr) return std::nullopt;
  const Value from = builder.layer(gate).inputs[0];
  if (activation->function == Function::sigmoid && from == x) return n.function(Function::silu, x);
  const bool hard = near(activation->alpha, 1.0 / 6) && near(activation->beta, 0.5);
  if (activation->function == Function::hard_sigmoid && from == x && hard) return n.function(Function::hard_swish, x);
  if (activation->function == Function::tanh && is_function(builder, from, Function::softplus) &&
      builder.layer(from).inputs[0] == x)
    return n.function(Function::mish, x);
  return std::nullopt;
}

// If a value is the mean of `of` over dimensions from some axis to the last: returns that axis.
std::optional<std::size_t> mean_from(NodeReader& n, Value value, Value of) {
  const auto* mean = n.builder().computed_by<Mean>(value);
  if (mean == nullptr || !mean->keep || n.builder().layer(value).inputs[0] != of) return std::nullopt;
  const std::size_t first = n.shape(of).size() - mean->axes.size();
  for (std::size_t i = 0; i < mean->axes.size(); ++i)
    if (mean->axes[i] != first + i) return std::nullopt;
  return first;
}

bool is_square(const GraphBuilder& builder, Value value, Value of) {
  if (!is_function(builder, value, Function::square) && !is_arithmetic(builder, value, product)) return false;
  return builder.layer(value).inputs[0] == of && builder.layer(value).inputs.back() == of;
}

// value / sqrt(mean square + epsilon), over the dimensions from an axis to the last. The value is x - mean if centred,
// else x.
struct Normalization {
  Value of;
  std::size_t axis;
  float epsilon;
  bool centred;
};

// A value divided by a root, or multiplied by a root's reciprocal.
struct Quotient {
  Value dividend, radicand;
};

std::optional<Quotient> quotient_by_root(const GraphBuilder& builder, Value value) {
  const bool by_reciprocal = is_arithmetic(builder, value, product);
  if (!by_reciprocal && !is_arithmetic(builder, value, quotient)) return std::nullopt;
  const auto& inputs = builder.layer(value).inputs;
  for (const std::size_t i : {1, 0}) {
    Value root = inputs[i];
    if (by_reciprocal && !is_function(builder, root, Function::reciprocal)) continue;
    if (by_reciprocal) root = builder.layer(root).inputs[0];
    if (is_function(builder, root, Function::square_root))
      return Quotient{inputs[1 - i], builder.layer(root).inputs[0]};
    if (!by_reciprocal) break;
  }
  return std::nullopt;
}

std::optional<Normalization> normalization(NodeReader& n, Value value) {
  const GraphBuilder& builder = n.builder();
  const auto made = quotient_by_root(builder, value);
  if (!made) return std::nullopt;
  const Line variance = line(builder, made->radicand);
  if (variance.alpha != 1 || builder.computed_by<Mean>(variance.x) == nullptr) return std::nullopt;
  const Value squares = builder.layer(variance.x).inputs[0];
  const auto axis = mean_from(n, variance.x, squares);
  if (!axis || !is_square(builder, squares, made->dividend)) return std::nullopt;
  const auto epsilon = static_cast<float>(variance.beta);
  if (is_arithmetic(builder, made->dividend, difference)) {
    const auto& inputs = builder.layer(made->dividend).inputs;
    if (mean_from(n, inputs[1], inputs[0]) == axis) return Normalization{inputs[0], *axis, epsilon, true};
  }
  return Normalization{made->dividend, *axis, epsilon, false};
}

// Returns the parameter with a number for each channel of x that a value is, or that it is reshaped from. Exporters may
// have reshaped it themselves.
std::optional<Stored> parameter_by_channel(NodeReader& n, Value value, Value x) {
  const GraphBuilder& builder = n.builder();
  if (!is_per_channel(n.shape(value), n.shape(x))) return std::nullopt;
  if (builder.computed_by<Reshape>(value) != nullptr) value = builder.layer(value).inputs[0];
  if (builder.computed_by<Learned>(value) != nullptr) return builder.layer(value).stored[0];
  return builder.computed_by<Constant>(value) != nullptr ? builder.layer(value).values : std::nullopt;
}

// Group normalization as PyTorch's older exporter writes it: a normalization of reshaped images, then a scale and a
// shift for each channel.
std::optional<Value> group_norm(NodeReader& n, Value a, Value b) {
  const GraphBuilder& builder = n.builder();
  const auto* product_layer = builder.computed_by<Arithmetic>(a);
  const auto shift = parameter_by_channel(n, b, a);
  if (!shift || product_layer == nullptr || product_layer->op != product) return std::nullopt;
  Value normalized = builder.layer(a).inputs[0];
  auto scale = parameter_by_channel(n, builder.layer(a).inputs[1], a);
  if (!scale) {
    scale = parameter_by_channel(n, normalized, a);
    normalized = builder.layer(a).inputs[1];
  }
  if (!scale || builder.computed_by<Reshape>(normalized) == nullptr) return std::nullopt;
  const auto norm = normalization(n, builder.layer(normalized).inputs[0]);
  if (!norm || !norm->centred || norm->axis != 2 || builder.computed_by<Reshape>(norm->of) == nullptr)
    return std::nullopt;
  const Value x = builder.layer(norm->of).inputs[0];
  const Shape grouped = n.shape(norm->of);
  const bool same_images = grouped[0] == n.shape(x)[0] && builder.batch(norm->of) == builder.batch(x);
  if (n.shape(x) != n.shape(a) || !same_images || n.shape(x)[1] % grouped[1] != 0) return std::nullopt;
  const GroupNorm operation{grouped[1], norm->epsilon};
  return n.add(operation, {x}, {*scale, *shift});
}

// Layer normalization in parts, as exporters write it for operators before version 17, or the normalization by the root
// mean square for those before version 23: a normalization times a parameter. The shift is added like a bias.
std::optional<Value> layer_norm(NodeReader& n, Value normalized, Value scale) {
  const GraphBuilder& builder = n.builder();
  const auto norm = normalization(n, normalized);
  if (!norm || builder.computed_by<Learned>(scale) == nullptr) return std::nullopt;
  const Shape shape = n.shape(norm->of);
  if (n.shape(scale) != Shape(shape.begin() + static_cast<std::ptrdiff_t>(norm->axis), shape.end()))
    return std::nullopt;
  const LayerNorm operation{norm->axis, norm->epsilon, false, norm->centred};
  return n.add(operation, {norm->of}, {builder.layer(scale).stored[0]});
}

}  // namespace

std::optional<Value> recognized(NodeReader& n, Arithmetic::Operator op, Value a, Value b) {
  for (const auto& [x, y] : {std::pair{a, b}, std::pair{b, a}}) {
    if (op == sum)
      for (const auto pattern : {group_norm, position_embedding})
        if (const auto found = pattern(n, x, y)) return found;
    if (op != product) continue;
    for (const auto pattern : {gelu, gelu_tanh, gated, layer_norm})
      if (const auto found = pattern(n, x, y)) return found;
  }
  return std::nullopt;
}

}  // namespace annulus
