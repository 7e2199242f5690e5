#include "kernels/operations/dense.h"

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

Shape Dense::output_shape(const Shapes& inputs) const {
  expect_dimensions(inputs[0], 2, kName);
  return {inputs[0][0], units};
}

std::vector<ParameterDeclaration> Dense::parameters(const Shapes& inputs) const {
  Shape weight = inputs[0];
  weight[0] = units;
  return weights_and_bias(weight, stddev, units, bias);
}

std::uint64_t Dense::flops(const Shapes& inputs) const {
  return 2 * elements(inputs[0]) * units;
}

Shape Linear::output_shape(const Shapes& inputs) const {
  expect_dimensions(inputs[0], 2, kName);
  Shape out = inputs[0];
  out.back() = units;
  return out;
}

std::vector<ParameterDeclaration> Linear::parameters(const Shapes& inputs) const {
  return weights_and_bias({units, inputs[0].back()}, stddev, units, bias);
}

std::uint64_t Linear::flops(const Shapes& inputs) const {
  return 2 * elements(inputs[0]) * units;
}

Shape MatrixProduct::output_shape(const Shapes& inputs) const {
  expect_inputs(inputs, 2, kName);
  const Shape &a = inputs[0], &b = inputs[1];
  expect_dimensions(a, 2, kName);
  const std::size_t last = a.size() - 1;
  Shape out = a;
  if (b.size() == a.size()) out[last] = b[last];
  Shape fitting = out;
  fitting[last - 1] = a[last];
  if (b != fitting)
    fail("matrix product takes {{..., m, k}} and {{..., k, n}}, not {} and {}", to_string(a), to_string(b));
  return out;
}

std::uint64_t MatrixProduct::flops(const Shapes& inputs) const {
  return 2 * elements(inputs[0]) * inputs[1].back();
}

}  // namespace annulus
