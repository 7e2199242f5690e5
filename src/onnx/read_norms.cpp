#include <algorithm>

#include "kernels/base/error.h"
#include "src/onnx/fold.h"
#include "src/onnx/reader.h"

namespace annulus {
namespace {

Stored parameter(NodeReader& n, std::size_t input, std::size_t size) {
  const Stored stored = n.expect_stored(input, fmt::format("input {} is", input));
  if (elements(n.input_shape(input)) != size)
    fail("its input {} has {} elements, but {} are needed", input, elements(n.input_shape(input)), size);
  return stored;
}

// (x - mean) / sqrt(variance + epsilon) over some dimensions.
Value normalized(NodeReader& n, Value x, const std::vector<std::size_t>& axes, float epsilon) {
  using enum Arithmetic::Operator;
  const Value centred = n.combine(difference, x, n.add(Mean{axes, true}, {x}));
  const Value variance = n.add(Mean{axes, true}, {n.function(Activation::Function::square, centred)});
  const Value deviation = n.function(Activation::Function::square_root, n.linear(variance, 1, epsilon));
  return n.combine(quotient, centred, deviation);
}

// Returns an input with a number for each channel of x, in a shape that is repeated.
Value by_channel(NodeReader& n, std::size_t input, Value x) {
  Shape shape(n.shape(x).size(), 1);
  shape[1] = n.shape(x)[1];
  return n.reshape(n.table(input, "a parameter of values that do not depend on the images"), shape);
}

Value scaled_and_shifted(NodeReader& n, Value x, bool scale, bool shift) {
  using enum Arithmetic::Operator;
  if (scale) x = n.combine(product, x, by_channel(n, 1, x));
  return shift ? n.combine(sum, x, by_channel(n, 2, x)) : x;
}

// Batch normalization of parameters, as exporters write weight standardization. It uses the parameters' statistics.
Value normalized_parameters(NodeReader& n, Value x) {
  using enum Arithmetic::Operator;
  const float epsilon = n.attributes.real("epsilon", 1e-5f);
  std::vector<std::size_t> axes;
  for (std::size_t i = 0; i < n.shape(x).size(); ++i)
    if (i != 1) axes.push_back(i);
  if (n.attributes.whole("training_mode", 0) != 0) {
    x = normalized(n, x, axes, epsilon);
  } else {
    const Value centred = n.combine(difference, x, by_channel(n, 3, x));
    const Value variance = n.linear(by_channel(n, 4, x), 1, epsilon);
    x = n.combine(quotient, centred, n.function(Activation::Function::square_root, variance));
  }
  return scaled_and_shifted(n, x, n.number(1) != 1, n.number(2) != 0);
}

// A constant scale or shift, beside a computed shift or scale.
Stored constant_parameter(std::size_t size, double value) {
  Stored constant{.frozen = true};
  constant.computed = std::make_shared<const HostTensor>(real_numbers({size}, std::vector<double>(size, value)));
  return constant;
}

// Values with fewer or more dimensions are reshaped to images.
void read_batch_norm(NodeReader& n) {
  const Value x = n.value(0);
  const Shape shape = n.shape(x);
  if (n.used(1) || n.used(2)) fail("its statistics are not supported as outputs");
  if (shape.size() < 2) fail("its input of {} has no channels", n.text(x));
  if (!n.builder().batch(x)) return n.set(normalized_parameters(n, x));
  const bool scale = n.is_layer(1), shift = n.is_layer(2);  // whether they are computed
  std::vector<Stored> parameters{scale ? constant_parameter(shape[1], 1) : parameter(n, 1, shape[1]),
                                 shift ? constant_parameter(shape[1], 0) : parameter(n, 2, shape[1])};
  for (const std::size_t input : {3, 4}) parameters.push_back(parameter(n, input, shape[1]));
  Shape images = shape;
  images.resize(4, 1);
  if (shape.size() > 4) images[3] = elements(shape) / (shape[0] * shape[1] * shape[2]);
  const float momentum = n.attributes.real("momentum", 0.9f);  // the old statistics' factor
  if (!(momentum >= 0 && momentum <= 1)) fail("its momentum is {}, but it must be 0 to 1", momentum);
  const BatchNorm operation{.epsilon = n.attributes.real("epsilon", 1e-5f), .momentum = 1 - momentum};
  const Value normalized = n.add(operation, {n.reshape(x, images)}, parameters);
  n.set(scaled_and_shifted(n, n.reshape(normalized, shape), scale, shift));
}

void read_layer_norm(NodeReader& n) {
  const Value x = n.value(0);
  const Shape shape = n.shape(x);
  if (n.used(1) || n.used(2)) fail("its statistics are not supported as outputs");
  const std::size_t axis = checked_axis(n.attributes.whole("axis", -1), shape.size());
  const auto place = n.builder().batch(x);
  if (place && place->axis >= axis) fail("it mixes the images of a batch");
  const float epsilon = n.attributes.real("epsilon", 1e-5f);
  if (n.number(1) == 1 && (!n.has(2) || n.number(2) == 0)) {
    std::vector<std::size_t> axes;
    for (std::size_t i = axis; i < shape.size(); ++i) axes.push_back(i);
    return n.set(normalized(n, x, axes, epsilon));
  }
  const std::size_t size = elements(Shape(shape.begin() + static_cast<std::ptrdiff_t>(axis), shape.end()));
  std::vector<Stored> parameters{parameter(n, 1, size)};
  const bool shift = n.has(2) && n.number(2) != 0;
  if (shift) parameters.push_back(parameter(n, 2, size));
  n.set(n.add(LayerNorm{axis, epsilon, shift}, {x}, parameters));
}

// x / sqrt(mean square + epsilon), times a scale (Zhang and Sennrich, "Root mean square layer normalization", NeurIPS
// 2019).
void read_rms_norm(NodeReader& n) {
  using enum Arithmetic::Operator;
  const Value x = n.value(0);
  const Shape shape = n.shape(x);
  if (n.used(1)) fail("its statistics are not supported as outputs");
  const std::size_t first = checked_axis(n.attributes.whole("axis", -1), shape.size());
  if (const auto place = n.builder().batch(x); place && place->axis >= first) fail("it mixes the images of a batch");
  const float epsilon = n.attributes.real("epsilon", 1e-5f);
  if (const auto scale = n.stored(1);
      scale && n.number(1) != 1 &&
      n.input_shape(1) == Shape(shape.begin() + static_cast<std::ptrdiff_t>(first), shape.end()))
    return n.set(n.add(LayerNorm{first, epsilon, false, false}, {x}, {*scale}));
  std::vector<std::size_t> axes;
  for (std::size_t i = first; i < shape.size(); ++i) axes.push_back(i);
  const Value mean = n.add(Mean{axes, true}, {n.function(Activation::Function::square, x)});
  const Value root = n.function(Activation::Function::square_root, n.linear(mean, 1, epsilon));
  const Value normalized = n.combine(quotient, x, root);
  n.set(n.number(1) == 1 ? normalized : n.combine(product, normalized, n.value(1)));
}

void read_instance_norm(NodeReader& n) {
  const Value x = n.value(0);
  const Shape shape = n.shape(x);
  const float epsilon = n.attributes.real("epsilon", 1e-5f);
  if (shape.size() < 3) fail("its input of {} is not supported: use images", n.text(x));
  if (n.number(1) != 1 || n.number(2) != 0)
    return n.set(n.add(GroupNorm{shape[1], epsilon}, {x}, {parameter(n, 1, shape[1]), parameter(n, 2, shape[1])}));
  std::vector<std::size_t> axes;
  for (std::size_t i = 2; i < shape.size(); ++i) axes.push_back(i);
  n.set(normalized(n, x, axes, epsilon));
}

void read_group_norm(NodeReader& n) {
  const Value x = n.value(0);
  const std::int64_t groups = n.attributes.whole("num_groups", 0);
  if (n.shape(x).size() < 2) fail("its input of {} has no channels", n.text(x));
  const std::size_t channels = n.shape(x)[1];
  if (groups < 1 || channels % static_cast<std::size_t>(groups) != 0)
    fail("its {} channels cannot be divided into {} groups", channels, groups);
  n.set(n.add(GroupNorm{static_cast<std::size_t>(groups), n.attributes.real("epsilon", 1e-5f)}, {x},
              {parameter(n, 1, channels), parameter(n, 2, channels)}));
}

void read_local_response_norm(NodeReader& n) {
  const std::int64_t size = n.attributes.whole("size", 0);
  if (size < 1) fail("its size is {}", size);
  n.set(n.add(LocalResponseNorm{static_cast<std::size_t>(size), n.attributes.real("alpha", 1e-4f),
                                n.attributes.real("beta", 0.75f), n.attributes.real("bias", 1)},
              {n.value(0)}));
}

}  // namespace

void add_norms(ReadNodes& all) {
  all["BatchNormalization"] = read_batch_norm;
  all["LayerNormalization"] = read_layer_norm;
  all["RMSNormalization"] = read_rms_norm;
  all["SimplifiedLayerNormalization"] = read_rms_norm;  // ONNX Runtime's name
  all["InstanceNormalization"] = read_instance_norm;
  all["GroupNormalization"] = read_group_norm;
  all["LRN"] = read_local_response_norm;
}

}  // namespace annulus
