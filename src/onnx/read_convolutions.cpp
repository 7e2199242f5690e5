#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "src/onnx/reader.h"
#include "src/onnx/windows.h"

namespace annulus {
namespace {

// Weights, and a bias unless it is missing or all zeros.
std::vector<Stored> convolution_parameters(NodeReader& n) {
  std::vector<Stored> all{n.expect_stored(1, "weights are")};
  if (n.has(2) && n.number(2) != 0) all.push_back(n.expect_stored(2, "bias is"));
  return all;
}

// Appends a convolution. Weights for lines keep their shape as parameters, and are reshaped as values.
template <class Convolution>
void set_convolution(NodeReader& n, const Convolution& convolution, Value x, const std::vector<Stored>& parameters) {
  if (!n.trained(1) || n.input_shape(1).size() != 3)
    return n.set(n.from_images(n.add(convolution, {x}, parameters), 0));
  std::vector<Value> inputs{x, n.as_images(n.value(1))};
  if (convolution.bias) inputs.push_back(n.value(2));
  n.set(n.from_images(n.add(ComputedWeights{convolution}, inputs), 0));
}

std::size_t groups(NodeReader& n) {
  return checked_extent(n.attributes.whole("group", 1), "group");
}

// Returns the weights' shape for images, which may stand for lines.
Shape weights_shape(NodeReader& n) {
  Shape shape = n.input_shape(1);
  if (shape.size() == 3 && n.input_shape(0).size() == 3) shape.insert(shape.begin() + 2, 1);
  return shape;
}

// Returns the dimension (0, 1 or 2) in which every window is a single element.
std::size_t flat_dimension(NodeReader& n, const Shape& weight) {
  const auto strides = n.attributes.wholes("strides"), pads = n.attributes.wholes("pads");
  const auto is = [](const std::vector<std::int64_t>& all, std::size_t i, std::int64_t value) {
    return i >= all.size() || all[i] == value;
  };
  for (std::size_t d = 0; d < 3; ++d)
    if (weight[2 + d] == 1 && is(strides, d, 1) && is(pads, d, 0) && is(pads, 3 + d, 0)) return d;
  fail("volumes are supported only if the windows have one element of a dimension");
}

// Convolves volumes as images: slices across a dimension.
void read_volume_convolution(NodeReader& n) {
  const Shape in = n.input_shape(0), weight = n.input_shape(1);
  if (weight.size() != 5) fail("its weights of {} do not fit volumes", to_string(weight));
  expect_windows(n.attributes, 3);
  if (n.attributes.text("auto_pad", "NOTSET") != "NOTSET") fail("auto_pad is not supported for volumes: use pads");
  const std::size_t flat = flat_dimension(n, weight), a = flat == 0 ? 1 : 0, b = flat == 2 ? 1 : 2;
  const auto two = [&](const char* name, std::size_t from, std::int64_t missing, std::int64_t least) {
    const auto all = n.attributes.wholes(name);
    const auto at = [&](std::size_t i) { return checked_extent(all.empty() ? missing : all[from + i], name, least); };
    return Extent{at(a), at(b)};
  };
  const Extent before = two("pads", 0, 0, 0), after = two("pads", 3, 0, 0);
  Convolution convolution{.channels = weight[0], .kernel = {weight[2 + a], weight[2 + b]}};
  convolution.stride = two("strides", 0, 1, 1);
  convolution.dilation = two("dilations", 0, 1, 1);
  convolution.groups = groups(n);
  convolution.bias = n.has(2);
  convolution.padding = {before.height, before.width, after.height, after.width};
  if (weight[1] * convolution.groups != in[1])
    fail("its weights of {} do not fit {} channels in {} groups", to_string(weight), in[1], convolution.groups);
  const Value slices = n.transpose(n.value(0), {0, 2 + flat, 1, 2 + a, 2 + b});
  const Value images = n.reshape(slices, {in[0] * in[2 + flat], in[1], in[2 + a], in[2 + b]}, 0);
  std::vector<Value> inputs{images, n.reshape(n.value(1), {weight[0], weight[1], weight[2 + a], weight[2 + b]})};
  if (convolution.bias) inputs.push_back(n.value(2));
  const Value made = n.add(ComputedWeights{convolution}, inputs);
  const Shape out = n.shape(made);
  std::vector<std::size_t> order{0, 2, 0, 0, 0};
  for (const auto& [dimension, from] : {std::pair(flat, 1), {a, 3}, {b, 4}})
    order[2 + dimension] = static_cast<std::size_t>(from);
  n.set(n.transpose(n.reshape(made, {in[0], in[2 + flat], out[1], out[2], out[3]}, 0), order));
}

void read_convolution(NodeReader& n) {
  if (n.input_shape(0).size() == 5) return read_volume_convolution(n);
  const Value x = n.as_images(n.value(0));
  const Shape weight = weights_shape(n), in = n.shape(x);
  expect_images(in, weight);
  expect_windows(n.attributes, n.input_shape(0).size() - 2);
  const auto parameters = convolution_parameters(n);
  Convolution convolution{.channels = weight[0], .kernel = {weight[2], weight[3]}};
  convolution.stride = extent(n.attributes, "strides");
  convolution.dilation = extent(n.attributes, "dilations");
  convolution.groups = groups(n);
  convolution.bias = parameters.size() > 1;
  convolution.padding = border(n.attributes, in, convolution.kernel, convolution.stride, convolution.dilation);
  if (weight[1] * convolution.groups != in[1])
    fail("its weights of {} do not fit {} channels in {} groups", to_string(weight), in[1], convolution.groups);
  set_convolution(n, convolution, x, parameters);
}

void read_transposed_convolution(NodeReader& n) {
  const Value x = n.as_images(n.value(0));
  const Shape weight = weights_shape(n), in = n.shape(x);
  expect_images(in, weight);
  expect_windows(n.attributes, n.input_shape(0).size() - 2);
  if (n.attributes.has("output_shape") || n.attributes.text("auto_pad", "NOTSET") != "NOTSET")
    fail("output_shape and auto_pad are not supported: use pads and output_padding");
  const auto parameters = convolution_parameters(n);
  TransposedConvolution convolution{.channels = weight[1] * groups(n), .kernel = {weight[2], weight[3]}};
  convolution.stride = extent(n.attributes, "strides");
  convolution.dilation = extent(n.attributes, "dilations");
  convolution.groups = groups(n);
  convolution.bias = parameters.size() > 1;
  convolution.padding = border(n.attributes, in, convolution.kernel, convolution.stride, convolution.dilation);
  if (n.attributes.has("output_padding")) convolution.extra = extent(n.attributes, "output_padding", 0);
  set_convolution(n, convolution, x, parameters);
}

}  // namespace

void add_convolutions(ReadNodes& all) {
  all["Conv"] = read_convolution;
  all["ConvTranspose"] = read_transposed_convolution;
}

}  // namespace annulus
