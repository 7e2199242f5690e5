#include "kernels/operations/shaping.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {
namespace {

void expect_axis(const Shape& in, std::size_t axis, std::string_view operation) {
  if (axis >= in.size()) fail("{} along dimension {}, which {} does not have", operation, axis, to_string(in));
}

}  // namespace

Shape Concat::output_shape(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  expect_axis(in, axis, kName);
  Shape out = in;
  out[axis] = 0;
  for (Shape other : inputs) {
    if (other.size() == in.size()) out[axis] += std::exchange(other[axis], in[axis]);
    if (other != in)
      fail("concat takes inputs that differ only in {}; the first is {}",
           axis == 1 ? "their channels" : "the dimension along which it concatenates", to_string(in));
  }
  return out;
}

Shape Reshape::output_shape(const Shapes& inputs) const {
  Shape out = shape;
  const auto inferred = std::ranges::find(out, kInferred);
  const std::size_t all = elements(inputs[0]);
  if (inferred != out.end()) {
    *inferred = 1;
    *inferred = elements(out) > 0 ? all / elements(out) : 0;
  }
  if (elements(out) != all)
    fail("{} cannot be reshaped to {}: {} elements instead of {}", to_string(inputs[0]), to_string(out), all,
         elements(out));
  return out;
}

Shape Transpose::output_shape(const Shapes& inputs) const {
  Shape out;
  for (const std::size_t from : order) {
    expect_axis(inputs[0], from, kName);
    out.push_back(inputs[0][from]);
  }
  std::vector<std::size_t> sorted = order;
  std::ranges::sort(sorted);
  if (out.size() != inputs[0].size() || std::ranges::adjacent_find(sorted) != sorted.end())
    fail("transpose of {} needs each of its dimensions once", to_string(inputs[0]));
  return out;
}

Shape Slice::output_shape(const Shapes& inputs) const {
  expect_axis(inputs[0], axis, kName);
  Shape out = inputs[0];
  if (size == 0 || begin + size > out[axis])
    fail("slice: elements {} to {} are not within the {} of dimension {}", begin, begin + size, out[axis], axis);
  out[axis] = size;
  return out;
}

Shape Gather::output_shape(const Shapes& inputs) const {
  expect_axis(inputs[0], axis, kName);
  Shape out = inputs[0];
  for (const std::size_t index : indices)
    if (index >= out[axis]) fail("gather: there is no element {} among the {} of dimension {}", index, out[axis], axis);
  out[axis] = indices.size();
  return out;
}

Shape Pad::output_shape(const Shapes& inputs) const {
  Shape out = inputs[0];
  if (before.size() != out.size() || after.size() != out.size())
    fail("pad needs an extent for each side of {}", to_string(out));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += before[i] + after[i];
  return out;
}

Shape Expand::output_shape(const Shapes& inputs) const {
  expect_inputs(inputs, 2, kName);
  const Shape& in = inputs[0];
  Shape out = shape;
  std::ranges::replace(out, kBatch, inputs[1][0]);
  if (out.size() != in.size()) fail("{} cannot be expanded to {}", to_string(in), to_string(out));
  for (std::size_t i = 0; i < out.size(); ++i)
    if (in[i] != out[i] && in[i] != 1) fail("{} cannot be expanded to {}", to_string(in), to_string(out));
  return out;
}

Shape Resize::output_shape(const Shapes& inputs) const {
  expect_images(inputs[0], kName);
  return {inputs[0][0], inputs[0][1], size.height, size.width};
}

// A parameter without dimensions becomes a single element in a single dimension, because devices have no tensors
// without dimensions.
Shape Learned::output_shape(const Shapes&) const {
  return shape.empty() ? Shape{1} : shape;
}

std::vector<ParameterDeclaration> Learned::parameters(const Shapes&) const {
  return {{parameter, output_shape({}), role, 0, stddev}};
}

Shape Constant::output_shape(const Shapes&) const {
  if (values.size() != elements(shape)) fail("constant: {} values do not make {}", values.size(), to_string(shape));
  return shape;
}

}  // namespace annulus
