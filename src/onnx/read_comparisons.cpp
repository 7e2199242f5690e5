#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/masks.h"
#include "src/onnx/reader.h"

// Comparisons, logic, and choices by them. A computed truth is the number 0 or 1.
namespace annulus {
namespace {

using Function = Activation::Function;
using enum Arithmetic::Operator;

Value opposite(NodeReader& n, Value truth) {
  return n.linear(truth, -1, 1);
}

template <Arithmetic::Operator op, bool exchanged>
void read_comparison(NodeReader& n) {
  if (compares_random_numbers(n, exchanged)) return;
  const Value a = n.value(0), b = n.value(1);
  n.set(exchanged ? n.combine(op, b, a) : n.combine(op, a, b));
}

void read_not(NodeReader& n) {
  n.set(opposite(n, n.value(0)));
}

void read_xor(NodeReader& n) {
  n.set(opposite(n, n.combine(equal, n.value(0), n.value(1))));
}

void read_is_nan(NodeReader& n) {
  const Value x = n.value(0);
  n.set(opposite(n, n.add(Arithmetic{equal}, {x, x})));
}

void read_is_inf(NodeReader& n) {
  const bool negative = n.attributes.whole("detect_negative", 1) != 0;
  const bool positive = n.attributes.whole("detect_positive", 1) != 0;
  if (!negative && !positive) fail("it detects neither infinity: remove it");
  const double largest = std::numeric_limits<float>::max();
  const Value x = n.value(0);
  if (!positive) return n.set(n.combine(greater, constant(n, real_numbers({}, {-largest})), x));
  const Value compared = negative ? n.function(Function::absolute, x) : x;
  n.set(n.combine(greater, compared, constant(n, real_numbers({}, {largest}))));
}

// The value that is not a number exactly if the truth is 1, if it was read from IsNaN.
std::optional<Value> checked_for_nan(const GraphBuilder& builder, Value truth) {
  const auto* opposite = builder.computed_by<Activation>(truth);
  if (opposite == nullptr || opposite->function != Function::linear || opposite->alpha != -1) return std::nullopt;
  const Value compared = builder.layer(truth).inputs[0];
  const auto* comparison = builder.computed_by<Arithmetic>(compared);
  const auto& inputs = builder.layer(compared).inputs;
  if (comparison == nullptr || comparison->op != equal || inputs[0] != inputs[1]) return std::nullopt;
  return inputs[0];
}

// PyTorch's softmax for scores that may all be masked: zeros instead of NaN.
std::optional<Value> safe_softmax(NodeReader& n) {
  if (!n.is_layer(0) || !n.is_layer(2) || n.number(1) != 0) return std::nullopt;
  const Value x = n.value(2);
  if (checked_for_nan(n.builder(), n.value(0)) != x || n.builder().computed_by<Softmax>(x) == nullptr)
    return std::nullopt;
  return without_masked_rows(n, x);
}

// Stored numbers are trained only if they are PyTorch's, as for other operators.
Host constant_input(NodeReader& n, std::size_t input) {
  const bool number = n.trained(input) && !n.exported_by_pytorch() && elements(n.input_shape(input)) == 1;
  return number ? std::make_shared<const HostTensor>(n.expect_constant(input)) : n.constant(input);
}

// An input where it is chosen, else 0; nothing if it is 0 everywhere.
std::optional<Value> chosen(NodeReader& n, std::size_t input) {
  if (n.number(input) == 0) return std::nullopt;
  const Host truths = n.constant(0), values = constant_input(n, input);
  if (truths != nullptr && values != nullptr && values->real()) {
    for (const std::size_t used : {std::size_t{0}, input}) n.expect_same_for_batches(used);
    const HostTensor zero = real_numbers({}, {0});
    const HostTensor &yes = input == 1 ? *values : zero, &no = input == 1 ? zero : *values;
    return constant(n, *evaluate("Where", n.attributes, {truths.get(), &yes, &no}));
  }
  const Value truth = n.value(0);
  return n.combine(choice, n.value(input), input == 1 ? truth : opposite(n, truth));
}

// Repeats a value to the shape that all three inputs have together.
void set_expanded(NodeReader& n, Value x) {
  Shape shape = n.input_shape(0);
  for (const std::size_t input : {1, 2}) shape = broadcast(shape, n.input_shape(input));
  n.set(n.shape(x) == shape ? x : n.expand(x, shape));
}

// By constant truths, scores become minus infinity or almost, as in attention: the same as adding it.
std::optional<Value> masked(NodeReader& n) {
  for (const std::size_t kept : {1, 2}) {
    const auto number = n.number(3 - kept);
    if (!number || !is_lowest(*number) || !n.is_layer(kept)) continue;
    const Host truths = n.constant_beside(0, n.value(kept));
    if (truths == nullptr) continue;
    if (truths->other_batch != nullptr) n.expect_same_for_batches(0);
    HostTensor mask = real_numbers(truths->shape, {});
    for (std::size_t i = 0; i < truths->size(); ++i)
      mask.reals.push_back((truths->at(i) != 0) == (kept == 1) ? 0 : *number);
    return n.combine(sum, n.value(kept), constant(n, std::move(mask)));
  }
  return std::nullopt;
}

void read_where(NodeReader& n) {
  if (const auto condition = n.number(0)) {
    const std::size_t input = *condition != 0 ? 1 : 2;
    return n.is_layer(input) ? set_expanded(n, n.value(input)) : n.set(n.item(input));
  }
  if (const auto softmax = safe_softmax(n)) return set_expanded(n, *softmax);
  if (const auto scores = masked(n)) return set_expanded(n, *scores);
  const auto a = chosen(n, 1), b = chosen(n, 2);
  if (!a && !b) return set_expanded(n, n.linear(n.value(0), 0, 0));
  set_expanded(n, a && b ? n.combine(sum, *a, *b) : a ? *a : *b);
}

// x above alpha, else 0.
void read_thresholded_relu(NodeReader& n) {
  const Value x = n.value(0);
  const Value bound = constant(n, real_numbers({}, {n.attributes.real("alpha", 1)}));
  n.set(n.combine(choice, x, n.combine(greater, x, bound)));
}

// x + bias below -lambd, x - bias above lambd, else 0.
void read_shrink(NodeReader& n) {
  const Value x = n.value(0);
  const double bound = n.attributes.real("lambd", 0.5f), bias = n.attributes.real("bias", 0);
  const Value above = n.combine(greater, x, constant(n, real_numbers({}, {bound})));
  const Value below = n.combine(greater, constant(n, real_numbers({}, {-bound})), x);
  n.set(
      n.combine(sum, n.combine(choice, n.linear(x, 1, -bias), above), n.combine(choice, n.linear(x, 1, bias), below)));
}

// max(0, x) + min(0, alpha (exp(x / alpha) - 1)).
void read_celu(NodeReader& n) {
  const double alpha = n.attributes.real("alpha", 1);
  if (alpha == 0) fail("its alpha is 0");
  n.set(n.linear(n.function(Function::elu, n.linear(n.value(0), 1 / alpha, 0), 1), alpha, 0));
}

void read_softsign(NodeReader& n) {
  const Value x = n.value(0);
  n.set(n.combine(quotient, x, n.linear(n.function(Function::absolute, x), 1, 1)));
}

void read_swish(NodeReader& n) {
  const Value x = n.value(0);
  const Value gate = n.function(Function::sigmoid, n.linear(x, n.attributes.real("alpha", 1), 0));
  n.set(n.combine(product, x, gate));
}

void read_sign(NodeReader& n) {
  n.set(n.function(Function::sign, n.value(0)));
}

}  // namespace

void add_comparisons(ReadNodes& all) {
  all["Greater"] = read_comparison<greater, false>;
  all["Less"] = read_comparison<greater, true>;
  all["GreaterOrEqual"] = read_comparison<at_least, false>;
  all["LessOrEqual"] = read_comparison<at_least, true>;
  all["Equal"] = read_comparison<equal, false>;
  all["And"] = read_comparison<product, false>;
  all["Or"] = read_comparison<maximum, false>;
  all["Xor"] = read_xor;
  all["Not"] = read_not;
  all["IsNaN"] = read_is_nan;
  all["IsInf"] = read_is_inf;
  all["Where"] = read_where;
  all["ThresholdedRelu"] = read_thresholded_relu;
  all["Shrink"] = read_shrink;
  all["Celu"] = read_celu;
  all["Softsign"] = read_softsign;
  all["Swish"] = read_swish;
  all["Sign"] = read_sign;
}

}  // namespace annulus
