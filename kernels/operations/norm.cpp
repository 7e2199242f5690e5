#include "kernels/operations/norm.h"

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

Shape BatchNorm::output_shape(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  expect_images(in, kName);
  if (inputs.size() != (add ? 2u : 1u) || inputs.back() != in)
    fail("batch norm takes {}; the first is {}", add ? "two inputs of the same shape" : "one input", to_string(in));
  return in;
}

std::vector<ParameterDeclaration> BatchNorm::parameters(const Shapes& inputs) const {
  const Shape channels{inputs[0][1]};
  return {{"weight", channels, Role::offset, initial_scale},
          {"bias", channels, Role::offset, 0},
          {"running_mean", channels, Role::statistic, 0, 0, momentum},
          {"running_var", channels, Role::statistic, 1, 0, momentum}};
}

Shape LayerNorm::output_shape(const Shapes& inputs) const {
  if (axis >= inputs[0].size()) fail("layer norm from dimension {} on does not fit {}", axis, to_string(inputs[0]));
  return inputs[0];
}

std::vector<ParameterDeclaration> LayerNorm::parameters(const Shapes& inputs) const {
  const Shape normalized(inputs[0].begin() + static_cast<std::ptrdiff_t>(axis), inputs[0].end());
  std::vector<ParameterDeclaration> all{{"weight", normalized, Role::offset, 1}};
  if (shift) all.push_back({"bias", normalized, Role::offset, 0});
  return all;
}

Shape GroupNorm::output_shape(const Shapes& inputs) const {
  expect_dimensions(inputs[0], 2, kName);
  if (groups == 0 || inputs[0][1] % groups != 0)
    fail("group norm: {} channels cannot be divided into {} groups", inputs[0][1], groups);
  return inputs[0];
}

std::vector<ParameterDeclaration> GroupNorm::parameters(const Shapes& inputs) const {
  const Shape channels{inputs[0][1]};
  return {{"weight", channels, Role::offset, 1}, {"bias", channels, Role::offset, 0}};
}

Shape LocalResponseNorm::output_shape(const Shapes& inputs) const {
  expect_images(inputs[0], kName);
  if (size == 0) fail("local response norm over 0 channels");
  return inputs[0];
}

}  // namespace annulus
