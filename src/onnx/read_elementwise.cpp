#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/patterns.h"
#include "src/onnx/reader.h"

namespace annulus {
namespace {

using Function = Activation::Function;
using enum Arithmetic::Operator;

// Returns what x repeats if that is a dimension's only element, which arithmetic repeats itself; else x.
Value unrepeated(NodeReader& n, Value other, Value x) {
  if (n.builder().computed_by<Expand>(x) != nullptr) {
    const Value single = n.builder().layer(x).inputs[0];
    return n.builder().batch(other) && broadcast(n.shape(other), n.shape(x)) == n.shape(other) ? single : x;
  }
  const auto* gather = n.builder().computed_by<Gather>(x);
  if (gather == nullptr || std::ranges::any_of(gather->indices, [](std::size_t i) { return i != 0; })) return x;
  const Value single = n.builder().layer(x).inputs[0];
  if (n.shape(single)[gather->axis] != 1) return x;
  return broadcast(n.shape(other), n.shape(single)) == n.shape(other) ? single : x;
}

// A value that is combined with images, for any batch.
Value for_any_batch(NodeReader& n, Value images, Value x) {
  const auto place = n.builder().batch(images);
  const std::size_t rank = n.shape(images).size(), own = n.shape(x).size();
  if (!place || place->axis + own < rank) return x;
  return n.for_images(x, place->axis + own - rank, *place, n.shape(images)[place->axis]);
}

// Returns a constant with equal elements, if it does not enlarge the other input.
std::optional<double> factor(NodeReader& n, std::size_t input) {
  const auto number = n.number(input);
  if (!number || (!n.is_layer(1 - input) && !n.trained(1 - input))) return std::nullopt;
  const Shape other = n.input_shape(1 - input), own = n.input_shape(input);
  if (n.trained_in_layers(input) && elements(own) > 1) return std::nullopt;  // a new layer's scale has equal elements
  return broadcast(other, own) == other ? number : std::nullopt;
}

Value with_number(NodeReader& n, Arithmetic::Operator op, Value x, double number, bool first) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  switch (op) {
    case sum:
      return n.linear(x, 1, number);
    case difference:
      return first ? n.linear(x, -1, number) : n.linear(x, 1, -number);
    case product:
      return n.linear(x, number, 0);
    case quotient:
      return first ? n.linear(n.function(Function::reciprocal, x), number, 0) : n.linear(x, 1 / number, 0);
    case maximum:
      return n.function(Function::clip, x, static_cast<float>(number), kLargest);
    case minimum:
      return n.function(Function::clip, x, -kLargest, static_cast<float>(number));
    default:
      fail("it is not arithmetic");
  }
}

// Combines the images with a constant for each channel.
std::optional<Value> with_channels(NodeReader& n, Arithmetic::Operator op, Value images, Value constant, bool first) {
  const auto* input = n.builder().computed_by<ImageInput>(images);
  const auto* channels = n.builder().computed_by<Constant>(constant);
  if (input == nullptr || channels == nullptr || channels->values.size() != input->mean.size()) return std::nullopt;
  if (op == maximum || op == minimum || (first && (op == quotient || op == difference))) return std::nullopt;
  const Shape shape = n.shape(constant);
  if (shape.size() < 3 || shape[shape.size() - 3] != channels->values.size()) return std::nullopt;
  std::vector<float> alpha(input->mean.size(), 1), beta(input->mean.size(), 0);
  for (std::size_t c = 0; c < alpha.size(); ++c) {
    const float value = channels->values[c];
    if (op == product) alpha[c] = value;
    if (op == quotient) alpha[c] = 1 / value;
    if (op == sum) beta[c] = value;
    if (op == difference) beta[c] = -value;
    if (!std::isfinite(value) || !std::isfinite(alpha[c]) || alpha[c] == 0) return std::nullopt;
  }
  return n.normalized(images, alpha, beta);
}

// A bias that follows a dense layer, or a shift that follows a layer normalization, becomes the layer's.
std::optional<Value> with_bias(NodeReader& n, Value x, std::size_t input) {
  const auto bias = n.stored(input);
  if (!bias || !n.trained(input) || !Graph::has_node(x) || n.readers_of_other(input) != 1) return std::nullopt;
  const GraphBuilder::Layer before = n.builder().layer(x);
  const auto add = [&](auto layer) -> std::optional<Value> {
    if (layer.bias || n.input_shape(input) != Shape{layer.units}) return std::nullopt;
    layer.bias = true;
    return n.add(layer, before.inputs, {before.stored[0], *bias});
  };
  if (const auto* norm = n.builder().computed_by<LayerNorm>(x); norm != nullptr && !norm->shift) {
    const Shape shape = n.shape(x);
    if (n.input_shape(input) != Shape(shape.begin() + static_cast<std::ptrdiff_t>(norm->axis), shape.end()))
      return std::nullopt;
    const LayerNorm shifted{norm->axis, norm->epsilon, true, norm->centred};
    return n.add(shifted, before.inputs, {before.stored[0], *bias});
  }
  if (const auto* layer = n.builder().computed_by<Dense>(x)) return add(*layer);
  if (const auto* layer = n.builder().computed_by<Linear>(x)) return add(*layer);
  return std::nullopt;
}

void arithmetic(NodeReader& n, Arithmetic::Operator op) {
  for (const std::size_t input : {1, 0})
    if (const auto number = factor(n, input)) return n.set(with_number(n, op, n.value(1 - input), *number, input == 0));
  if (op == sum)
    for (const std::size_t input : {1, 0})
      if (n.is_layer(1 - input))
        if (const auto biased = with_bias(n, n.value(1 - input), input)) return n.set(*biased);
  const Value a = n.operand(0), b = n.operand(1);
  if (const auto normalized = with_channels(n, op, a, b, false)) return n.set(*normalized);
  if (const auto normalized = with_channels(n, op, b, a, true)) return n.set(*normalized);
  n.set(n.combine(op, a, b));
}

template <Arithmetic::Operator op>
void read_arithmetic(NodeReader& n) {
  if (n.inputs() != 2) fail("it has {} inputs, but only 2 are supported", n.inputs());
  arithmetic(n, op);
}

// Reads a random mask of 0 and 1, scaled by a number, or multiplied with a layer's output.
template <Arithmetic::Operator op>
void read_product(NodeReader& n) {
  for (const std::size_t input : {0, 1}) {
    const auto* mask = n.as<RandomMask>(input);
    if (mask == nullptr) continue;
    const auto number = n.number(1 - input);
    if (number && (op == product || input == 0)) {
      RandomMask scaled = *mask;
      scaled.scale *= op == product ? *number : 1 / *number;
      return n.set(scaled);
    }
    if (op != product || !n.is_layer(1 - input)) fail("this use of random numbers is not supported: use Dropout");
    return n.set(n.masked(n.value(1 - input), *mask));
  }
  read_arithmetic<op>(n);
}

template <Arithmetic::Operator op>
void read_extremum(NodeReader& n) {
  if (n.inputs() == 1) return n.set(n.item(0));
  read_arithmetic<op>(n);
}

template <Function function>
void read_function(NodeReader& n) {
  n.set(n.function(function, n.value(0)));
}

void read_relu(NodeReader& n) {
  n.set(n.add(Relu{}, {n.value(0)}));
}

template <Function function>
void read_with_alpha(NodeReader& n) {
  const float missing = function == Function::leaky_relu ? 0.01f : 1;
  n.set(n.function(function, n.value(0), n.attributes.real("alpha", missing)));
}

void read_selu(NodeReader& n) {
  const Value elu = n.function(Function::elu, n.value(0), n.attributes.real("alpha", 1.67326319f));
  n.set(n.linear(elu, n.attributes.real("gamma", 1.05070102f), 0));
}

void read_hard_sigmoid(NodeReader& n) {
  n.set(n.function(Function::hard_sigmoid, n.value(0), n.attributes.real("alpha", 0.2f),
                   n.attributes.real("beta", 0.5f)));
}

void read_gelu(NodeReader& n) {
  const bool tanh = n.attributes.text("approximate", "none") == "tanh";
  n.set(n.function(tanh ? Function::gelu_tanh : Function::gelu, n.value(0)));
}

void read_erf(NodeReader& n) {
  n.set(n.add_erf(n.value(0)));
}

void read_negative(NodeReader& n) {
  n.set(n.linear(n.value(0), -1, 0));
}

void read_clip(NodeReader& n) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const auto bound = [&](std::size_t input, float missing) {
    if (!n.has(input)) return missing;
    return static_cast<float>(std::clamp<double>(n.expect_number(input), -kLargest, kLargest));
  };
  const float least = bound(1, -kLargest), most = bound(2, kLargest);
  n.set(n.function(Function::clip, n.value(0), least, most));
}

// The values that a function cannot make negative are kept from 0, where the logarithm's gradient is not finite.
Value positive(NodeReader& n, Value x) {
  using enum Activation::Function;
  const auto* activation = n.builder().computed_by<Activation>(x);
  const bool zeros = activation != nullptr && (activation->function == absolute || activation->function == square ||
                                               activation->function == exponential || activation->function == sigmoid ||
                                               activation->function == square_root);
  if (!zeros && n.builder().computed_by<Relu>(x) == nullptr) return x;
  return n.function(clip, x, 1e-30f, std::numeric_limits<float>::max());
}

// A power that is trained, as in generalized mean pooling (Radenovic et al., "Fine-tuning CNN image retrieval with no
// human annotation", TPAMI 2019).
void read_computed_power(NodeReader& n, Value x, Value exponent) {
  const Value logarithm = n.function(Function::logarithm, positive(n, x));
  n.set(n.function(Function::exponential, n.combine(product, logarithm, exponent)));
}

void read_power(NodeReader& n) {
  const Value x = n.value(0);
  if (n.is_layer(1) || (n.trained(1) && n.exported_by_pytorch())) return read_computed_power(n, x, n.value(1));
  const double exponent = n.expect_number(1);
  if (exponent == 1) return n.set(x);
  if (exponent == 2) return n.set(n.function(Function::square, x));
  if (exponent == 3) return n.set(n.combine(product, x, n.function(Function::square, x)));
  if (exponent == 0.5) return n.set(n.function(Function::square_root, x));
  if (exponent == -1) return n.set(n.function(Function::reciprocal, x));
  if (exponent == -0.5) return n.set(n.function(Function::reciprocal, n.function(Function::square_root, x)));
  // As in PyTorch, the result is not a number for negative numbers, and the gradient is not finite for 0.
  if (exponent < 1 && exponent != std::round(exponent))
    return n.set(n.function(Function::exponential, n.linear(n.function(Function::logarithm, x), exponent, 0)));
  fail("only the powers -1, 1, 2 and 3, and fractions below 1, are supported");
}

void read_prelu(NodeReader& n) {
  const Value x = n.value(0);
  const Stored slope = n.expect_stored(1, "slopes are");
  const bool one = elements(n.input_shape(1)) == 1;
  if (!one && !is_per_channel(n.input_shape(1), n.shape(x)))
    fail("its slopes of {} are not one for each channel of its input of {}", to_string(n.input_shape(1)), n.text(x));
  n.set(n.add(PRelu{!one}, {x}, {slope}));
}

Value softmax(NodeReader& n) {
  const Value x = n.value(0);
  const Shape shape = n.shape(x);
  const bool flat = n.operators() < 13;  // then over all dimensions from the axis on
  const std::size_t axis = checked_axis(n.attributes.whole("axis", flat ? 1 : -1), shape.size());
  const auto place = n.builder().batch(x);
  if (place && (flat ? place->axis >= axis : place->axis == axis)) fail("it mixes the images of a batch");
  if (axis + 1 == shape.size()) return n.add(Softmax{}, {x});
  if (flat) {
    Shape merged(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis));
    merged.push_back(elements(shape) / elements(merged));
    return n.reshape(n.add(Softmax{}, {n.reshape(x, merged)}), shape);
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < shape.size(); ++i) order.push_back(i);
  std::swap(order[axis], order.back());
  return n.transpose(n.add(Softmax{}, {n.transpose(x, order)}), order);
}

// Whether the node is the softmax or sigmoid at the network's end that this loss computes itself.
bool dropped(NodeReader& n, Loss loss) {
  if (n.task().loss != loss) return false;
  if (!n.graph_output(0) || n.used(0) || n.input_shape(0).size() != 2) return false;
  if (checked_axis(n.attributes.whole("axis", n.operators() < 13 ? 1 : -1), 2) != 1) return false;
  n.note(fmt::format("the last {} is dropped: the loss computes it from logits", n.op()));
  n.set(n.value(0));
  return true;
}

void read_softmax(NodeReader& n) {
  if (!dropped(n, Loss::softmax)) n.set(softmax(n));
}

void read_sigmoid(NodeReader& n) {
  if (!dropped(n, Loss::binary)) read_function<Function::sigmoid>(n);
}

void read_log_softmax(NodeReader& n) {
  if (!dropped(n, Loss::softmax)) n.set(n.function(Function::logarithm, softmax(n)));
}

}  // namespace

Value NodeReader::combine(Arithmetic::Operator op, Value a, Value b) {
  if (const auto found = recognized(*this, op, a, b)) return *found;
  b = for_any_batch(*this, a, unrepeated(*this, a, b));
  a = for_any_batch(*this, b, unrepeated(*this, b, a));
  const Shape of_a = shape(a), of_b = shape(b), out = broadcast(of_a, of_b);
  const auto place_a = builder().batch(a), place_b = builder().batch(b);
  if (place_a && place_b &&
      (place_a->axis + out.size() - of_a.size() != place_b->axis + out.size() - of_b.size() ||
       place_a->outer != place_b->outer))
    fail("it mixes the images of a batch");
  if (op == sum && of_a == of_b && place_a == place_b) return add(Add{}, {a, b});
  return add(Arithmetic{op}, {a, b});
}

void add_elementwise(ReadNodes& all) {
  all["Add"] = read_arithmetic<sum>;
  all["Sub"] = read_arithmetic<difference>;
  all["Mul"] = read_product<product>;
  all["Div"] = read_product<quotient>;
  all["Max"] = read_extremum<maximum>;
  all["Min"] = read_extremum<minimum>;
  all["Relu"] = read_relu;
  all["LeakyRelu"] = read_with_alpha<Function::leaky_relu>;
  all["Elu"] = read_with_alpha<Function::elu>;
  all["Selu"] = read_selu;
  all["Sigmoid"] = read_sigmoid;
  all["Tanh"] = read_function<Function::tanh>;
  all["Mish"] = read_function<Function::mish>;
  all["Softplus"] = read_function<Function::softplus>;
  all["HardSwish"] = read_function<Function::hard_swish>;
  all["Abs"] = read_function<Function::absolute>;
  all["Exp"] = read_function<Function::exponential>;
  all["Log"] = read_function<Function::logarithm>;
  all["Sqrt"] = read_function<Function::square_root>;
  all["Reciprocal"] = read_function<Function::reciprocal>;
  all["HardSigmoid"] = read_hard_sigmoid;
  all["Gelu"] = read_gelu;
  all["Erf"] = read_erf;
  all["Neg"] = read_negative;
  all["Clip"] = read_clip;
  all["Pow"] = read_power;
  all["PRelu"] = read_prelu;
  all["Softmax"] = read_softmax;
  all["LogSoftmax"] = read_log_softmax;
}

}  // namespace annulus
