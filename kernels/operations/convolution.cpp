#include "kernels/operations/convolution.h"

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {
namespace {

void expect_groups(std::size_t groups, std::size_t inputs, std::size_t outputs, std::string_view operation) {
  if (groups == 0 || inputs % groups != 0 || outputs % groups != 0)
    fail("{}: {} channels to {} cannot be divided into {} groups", operation, inputs, outputs, groups);
}

}  // namespace

Shape Convolution::output_shape(const Shapes& inputs) const {
  expect_images(inputs[0], kName);
  expect_groups(groups, inputs[0][1], channels, kName);
  return windows(inputs[0], channels, kernel, stride, padding, dilation);
}

std::vector<ParameterDeclaration> Convolution::parameters(const Shapes& inputs) const {
  const std::size_t each = inputs[0][1] / groups;
  auto all = weights_and_bias({channels, each, kernel.height, kernel.width}, stddev, channels, bias);
  all.front().begins_as_copy = begins_as_copy;
  return all;
}

std::uint64_t Convolution::flops(const Shapes& inputs) const {
  return 2 * elements(output_shape(inputs)) * (inputs[0][1] / groups) * kernel.area();
}

Shape TransposedConvolution::output_shape(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  expect_images(in, kName);
  expect_groups(groups, in[1], channels, kName);
  const std::size_t rows = (in[2] - 1) * stride.height + dilation.height * (kernel.height - 1) + extra.height + 1;
  const std::size_t columns = (in[3] - 1) * stride.width + dilation.width * (kernel.width - 1) + extra.width + 1;
  if (rows <= padding.height() || columns <= padding.width())
    fail("transposed convolution: its padding is larger than its output of {}x{} pixels", rows, columns);
  return {in[0], channels, rows - padding.height(), columns - padding.width()};
}

std::vector<ParameterDeclaration> TransposedConvolution::parameters(const Shapes& inputs) const {
  const std::size_t each = channels / groups;
  return weights_and_bias({inputs[0][1], each, kernel.height, kernel.width}, 0, channels, bias);
}

std::uint64_t TransposedConvolution::flops(const Shapes& inputs) const {
  return 2 * elements(inputs[0]) * (channels / groups) * kernel.area();
}

}  // namespace annulus
