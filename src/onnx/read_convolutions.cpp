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

// Appends a convolution. Weights of lines keep their shape as parameters, and are reshaped as values.
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

// The shape of the weights of images, which may stand for lines.
Shape weights_shape(NodeReader& n) {
  Shape shape = n.input_shape(1);
  if (shape.size() == 3 && n.input_shape(0).size() == 3) shape.insert(shape.begin() + 2, 1);
  return shape;
}

void read_convolution(NodeReader& n) {
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
