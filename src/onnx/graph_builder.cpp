#include "src/onnx/graph_builder.h"

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::size_t kMostLayers = std::size_t{1} << 20, kMostElements = std::size_t{1} << 31;

void expect_possible(const Shape& output) {
  std::size_t all = 1;
  for (const std::size_t extent : output) {
    if (extent == 0) fail("its output of {} has no elements", to_string(output));
    if (all > kMostElements / extent) fail("its output of {} has too many elements", to_string(output));
    all *= extent;
  }
}

}  // namespace

Value GraphBuilder::add(Layer layer) {
  Shapes ones, twos;
  for (const Value input : layer.inputs) {
    ones.push_back(of_one(input));
    twos.push_back(of_two(input));
  }
  if (const auto* operation = std::get_if<Operation>(&layer.operation)) {
    layer.of_one = output_shape(*operation, ones);
    layer.of_two = output_shape(*operation, twos);
  } else {
    layer.of_one = ones.at(0);
    layer.of_two = twos.at(0);
  }
  expect_possible(layer.of_two);
  if (layers_.size() == kMostLayers) fail("the network has more than {} layers", kMostLayers);
  layers_.push_back(std::move(layer));
  return Graph::output(layers_.size() - 1);
}

const Shape& GraphBuilder::of_one(Value value) const {
  return Graph::has_node(value) ? layer(value).of_one : outside_[value];
}

const Shape& GraphBuilder::of_two(Value value) const {
  return Graph::has_node(value) ? layer(value).of_two : outside_of_two_[value];
}

Shape GraphBuilder::shape(Value value, std::size_t batch) const {
  Shape shape = of_one(value);
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != of_two(value)[i]) shape[i] *= batch;
  return shape;
}

std::optional<BatchPlace> GraphBuilder::batch(Value value) const {
  for (std::size_t i = 0; i < of_one(value).size(); ++i)
    if (of_one(value)[i] != of_two(value)[i]) return BatchPlace{i, Graph::has_node(value) ? layer(value).outer : 1};
  return std::nullopt;
}

std::vector<bool> GraphBuilder::used_layers(Value value) const {
  std::vector<bool> used(layers_.size(), false);
  used[value - Graph::output(0)] = true;
  for (std::size_t i = used.size(); i-- > 0;)
    for (const Value input : layers_[i].inputs)
      if (used[i] && Graph::has_node(input)) used[input - Graph::output(0)] = true;
  return used;
}

}  // namespace annulus
