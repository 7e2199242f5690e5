#include "kernels/operations/elementwise.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

std::string_view name(Activation::Function function) {
  using enum Activation::Function;
  switch (function) {
    case linear:
      return "linear function";
    case clip:
      return "clip";
    case leaky_relu:
      return "leaky relu";
    case elu:
      return "elu";
    case sigmoid:
      return "sigmoid";
    case tanh:
      return "tanh";
    case silu:
      return "silu";
    case gelu:
      return "gelu";
    case gelu_tanh:
      return "gelu (tanh)";
    case mish:
      return "mish";
    case softplus:
      return "softplus";
    case hard_sigmoid:
      return "hard sigmoid";
    case hard_swish:
      return "hard swish";
    case absolute:
      return "absolute value";
    case exponential:
      return "exponential";
    case logarithm:
      return "logarithm";
    case square_root:
      return "square root";
    case square:
      return "square";
    case reciprocal:
      return "reciprocal";
    case sign:
      return "sign";
  }
  return "activation";
}

std::vector<ParameterDeclaration> PRelu::parameters(const Shapes& inputs) const {
  return {{"weight", {per_channel ? inputs[0].at(1) : 1}, Role::offset, 0.25f}};
}

Shape Add::output_shape(const Shapes& inputs) const {
  if (inputs.size() != 2 || inputs[1] != inputs[0])
    fail("add takes two inputs of the same shape; the first is {}", to_string(inputs[0]));
  return inputs[0];
}

std::string_view name(Arithmetic::Operator op) {
  using enum Arithmetic::Operator;
  switch (op) {
    case sum:
      return "sum";
    case difference:
      return "difference";
    case product:
      return "product";
    case quotient:
      return "quotient";
    case maximum:
      return "maximum";
    case minimum:
      return "minimum";
    case greater:
      return "greater";
    case at_least:
      return "at least";
    case equal:
      return "equal";
    case choice:
      return "choice";
  }
  return "arithmetic";
}

Shape Arithmetic::output_shape(const Shapes& inputs) const {
  expect_inputs(inputs, 2, name(op));
  Shape a = inputs[0], b = inputs[1];
  const std::size_t dimensions = std::max(a.size(), b.size());
  a.insert(a.begin(), dimensions - a.size(), 1);
  b.insert(b.begin(), dimensions - b.size(), 1);
  for (std::size_t i = 0; i < dimensions; ++i) {
    if (a[i] != b[i] && a[i] != 1 && b[i] != 1)
      fail("{} of {} and {}: their shapes do not fit", name(op), to_string(inputs[0]), to_string(inputs[1]));
    if (a[i] == 1) a[i] = b[i];
  }
  return a;
}

Shape Maximum::output_shape(const Shapes& inputs) const {
  Shape out = inputs[0];
  if (out.empty()) fail("the maximum of a dimension takes values with at least one dimension");
  out.back() = 1;
  return out;
}

Shape Dropout::output_shape(const Shapes& inputs) const {
  if (!(rate >= 0 && rate < 1)) fail("invalid dropout rate {}: must be at least 0 and below 1", rate);
  if (inputs.size() != 2 || inputs[1].size() != 1 || inputs[0].empty() || inputs[0][0] % inputs[1][0] != 0)
    fail("dropout takes values and {{batch}} keys; the first is {}", to_string(inputs[0]));
  return inputs[0];
}

}  // namespace annulus
