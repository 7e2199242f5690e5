#include "src/onnx/patterns.h"

#include <array>
#include <cmath>
#include <numbers>

namespace annulus {
namespace {

using Function = Activation::Function;
using enum Arithmetic::Operator;

bool near(double a, double b) {
  return std::fabs(a - b) <= 1e-4 * std::max(1.0, std::fabs(b));
}

// A value as alpha x + beta.
struct Line {
  Value x;
  double alpha = 1, beta = 0;
};

Line line(const Draft& draft, Value value) {
  const auto* activation = draft.computed_by<Activation>(value);
  if (activation == nullptr || activation->function != Function::linear) return {value};
  return {draft.layer(value).inputs[0], activation->alpha, activation->beta};
}

bool is_function(const Draft& draft, Value value, Function function) {
  const auto* activation = draft.computed_by<Activation>(value);
  return activation != nullptr && activation->function == function;
}

bool is_arithmetic(const Draft& draft, Value value, Arithmetic::Operator op) {
  const auto* arithmetic = draft.computed_by<Arithmetic>(value);
  return arithmetic != nullptr && arithmetic->op == op;
}

// x (1 + erf(x / sqrt(2))), with any factor, and x as a line: twice GELU (Hendrycks and Gimpel, "Gaussian error linear
// units", 2016).
std::optional<Value> gelu(NodeReader& n, Value a, Value b) {
  const Draft& draft = n.draft();
  const Line outer = line(draft, b);
  if (draft.computed_by<Erf>(outer.x) == nullptr || !near(outer.alpha, outer.beta)) return std::nullopt;
  const Line inner = line(draft, draft.layer(outer.x).inputs[0]), other = line(draft, a);
  // The argument x is alpha inner.x + beta, and the other factor is a multiple of it.
  const double alpha = inner.alpha * std::numbers::sqrt2, beta = inner.beta * std::numbers::sqrt2;
  if (inner.x != other.x || alpha == 0 || !near(other.beta, other.alpha / alpha * beta)) return std::nullopt;
  const double slope = near(alpha, 1) ? 1 : alpha;
  const Value x = n.linear(inner.x, slope, beta);
  const double factor = 2 * outer.alpha * other.alpha / slope;
  return n.linear(n.function(Function::gelu, x), near(factor, 1) ? 1 : factor, 0);
}

// A polynomial's coefficients of 1, x, x^2 and x^3.
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

// A value as a polynomial of x, if at most `depth` layers compute it from x one after the other.
std::optional<Cubic> cubic(const Draft& draft, Value value, Value x, int depth = 5) {
  if (value == x) return Cubic{0, 1};
  if (depth == 0 || !Graph::has_node(value)) return std::nullopt;
  const auto of_input = [&](std::size_t i) { return cubic(draft, draft.layer(value).inputs[i], x, depth - 1); };
  const bool sums = draft.computed_by<Add>(value) != nullptr || is_arithmetic(draft, value, sum);
  if (sums || is_arithmetic(draft, value, product)) {
    const auto a = of_input(0), b = a ? of_input(1) : a;
    if (!b) return std::nullopt;
    return sums ? sum_of(*a, *b) : product_of(*a, *b);
  }
  const Line outer = line(draft, value);
  const bool square = is_function(draft, value, Function::square);
  if (outer.x == value && !square) return std::nullopt;
  const auto a = of_input(0);
  if (!a) return std::nullopt;
  return square ? product_of(*a, *a) : sum_of(*product_of({outer.alpha}, *a), {outer.beta});
}

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), with any factor: twice GELU's approximation.
std::optional<Value> gelu_tanh(NodeReader& n, Value a, Value b) {
  const Draft& draft = n.draft();
  const Line outer = line(draft, b), other = line(draft, a);
  if (!is_function(draft, outer.x, Function::tanh) || !near(outer.alpha, outer.beta) || other.beta != 0)
    return std::nullopt;
  const auto inner = cubic(draft, draft.layer(outer.x).inputs[0], other.x);
  const double scale = std::sqrt(2 / std::numbers::pi);
  if (!inner || (*inner)[0] != 0 || (*inner)[2] != 0 || !near((*inner)[1], scale) ||
      !near((*inner)[3] / 0.044715, scale))
    return std::nullopt;
  const double factor = 2 * outer.alpha * other.alpha;
  return n.linear(n.function(Function::gelu_tanh, other.x), near(factor, 1) ? 1 : factor, 0);
}

// x times a function of x.
std::optional<Value> gated(NodeReader& n, Value x, Value gate) {
  const Draft& draft = n.draft();
  const auto* activation = draft.computed_by<Activation>(gate);
  if (activation == nullptr) return std::nullopt;
  const Value from = draft.layer(gate).inputs[0];
  if (activation->function == Function::sigmoid && from == x) return n.function(Function::silu, x);
  const bool hard = near(activation->alpha, 1.0 / 6) && near(activation->beta, 0.5);
  if (activation->function == Function::hard_sigmoid && from == x && hard) return n.function(Function::hard_swish, x);
  if (activation->function == Function::tanh && is_function(draft, from, Function::softplus) &&
      draft.layer(from).inputs[0] == x)
    return n.function(Function::mish, x);
  return std::nullopt;
}

// If a value is the mean of another one over its dimensions from some axis to the last: that axis.
std::optional<std::size_t> mean_from(NodeReader& n, Value value, Value of) {
  const auto* mean = n.draft().computed_by<Mean>(value);
  if (mean == nullptr || !mean->keep || n.draft().layer(value).inputs[0] != of) return std::nullopt;
  const std::size_t first = n.shape(of).size() - mean->axes.size();
  for (std::size_t i = 0; i < mean->axes.size(); ++i)
    if (mean->axes[i] != first + i) return std::nullopt;
  return first;
}

bool is_square(const Draft& draft, Value value, Value of) {
  if (!is_function(draft, value, Function::square) && !is_arithmetic(draft, value, product)) return false;
  return draft.layer(value).inputs[0] == of && draft.layer(value).inputs.back() == of;
}

// (x - mean) divided by the square root of the squares' mean plus epsilon, over the dimensions from an axis to the
// last.
struct Normalization {
  Value of;
  std::size_t axis;
  float epsilon;
};

std::optional<Normalization> normalization(NodeReader& n, Value value) {
  const Draft& draft = n.draft();
  if (!is_arithmetic(draft, value, quotient)) return std::nullopt;
  const Value centred = draft.layer(value).inputs[0], root = draft.layer(value).inputs[1];
  if (!is_arithmetic(draft, centred, difference) || !is_function(draft, root, Function::square_root))
    return std::nullopt;
  const Value x = draft.layer(centred).inputs[0];
  const Line variance = line(draft, draft.layer(root).inputs[0]);
  if (variance.alpha != 1 || draft.computed_by<Mean>(variance.x) == nullptr) return std::nullopt;
  const Value squares = draft.layer(variance.x).inputs[0];
  const auto axis = mean_from(n, draft.layer(centred).inputs[1], x);
  if (!axis || mean_from(n, variance.x, squares) != axis || !is_square(draft, squares, centred)) return std::nullopt;
  return Normalization{x, *axis, static_cast<float>(variance.beta)};
}

// The learned tensor with a number for each channel of x that a value is, or that it is reshaped from.
std::optional<Value> learned_by_channel(NodeReader& n, Value value, Value x) {
  const Draft& draft = n.draft();
  if (!is_per_channel(n.shape(value), n.shape(x))) return std::nullopt;
  if (draft.computed_by<Reshape>(value) != nullptr) value = draft.layer(value).inputs[0];
  return draft.computed_by<Learned>(value) != nullptr ? std::optional(value) : std::nullopt;
}

// Group normalization as PyTorch's older exporter writes it: a normalization of reshaped images, then a scale and a
// shift of each channel.
std::optional<Value> group_norm(NodeReader& n, Value a, Value b) {
  const Draft& draft = n.draft();
  const auto* product_layer = draft.computed_by<Arithmetic>(a);
  const auto shift = learned_by_channel(n, b, a);
  if (!shift || product_layer == nullptr || product_layer->op != product) return std::nullopt;
  Value normalized = draft.layer(a).inputs[0];
  auto scale = learned_by_channel(n, draft.layer(a).inputs[1], a);
  if (!scale) {
    scale = learned_by_channel(n, normalized, a);
    normalized = draft.layer(a).inputs[1];
  }
  if (!scale || draft.computed_by<Reshape>(normalized) == nullptr) return std::nullopt;
  const auto norm = normalization(n, draft.layer(normalized).inputs[0]);
  if (!norm || norm->axis != 2 || draft.computed_by<Reshape>(norm->of) == nullptr) return std::nullopt;
  const Value x = draft.layer(norm->of).inputs[0];
  const Shape grouped = n.shape(norm->of);
  const bool same_images = grouped[0] == n.shape(x)[0] && draft.batch(norm->of) == draft.batch(x);
  if (n.shape(x) != n.shape(a) || !same_images || n.shape(x)[1] % grouped[1] != 0) return std::nullopt;
  const GroupNorm operation{grouped[1], norm->epsilon};
  return n.add(operation, {x}, {draft.layer(*scale).stored[0], draft.layer(*shift).stored[0]});
}

// Layer normalization by its parts, as exporters write it for operators before version 17: a normalization times a
// parameter. Its shift is added as a bias is.
std::optional<Value> layer_norm(NodeReader& n, Value normalized, Value scale) {
  const Draft& draft = n.draft();
  const auto norm = normalization(n, normalized);
  if (!norm || draft.computed_by<Learned>(scale) == nullptr) return std::nullopt;
  const Shape shape = n.shape(norm->of);
  if (n.shape(scale) != Shape(shape.begin() + static_cast<std::ptrdiff_t>(norm->axis), shape.end()))
    return std::nullopt;
  return n.add(LayerNorm{norm->axis, norm->epsilon, false}, {norm->of}, {draft.layer(scale).stored[0]});
}

}  // namespace

std::optional<Value> recognized(NodeReader& n, Arithmetic::Operator op, Value a, Value b) {
  for (const auto& [x, y] : {std::pair{a, b}, std::pair{b, a}}) {
    if (op == sum)
      if (const auto found = group_norm(n, x, y)) return found;
    if (op != product) continue;
    for (const auto pattern : {gelu, gelu_tanh, gated, layer_norm})
      if (const auto found = pattern(n, x, y)) return found;
  }
  return std::nullopt;
}

}  // namespace annulus
