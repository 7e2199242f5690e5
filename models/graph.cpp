#include "models/graph.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace annulus {

Value Graph::add(Node node) {
  try {
    shapes_.push_back(output_shape(node.operation, input_shapes(node, 1)));
  } catch (const Error& error) {
    fail("layer {}: {}", node.name, error.what());
  }
  nodes_.push_back(std::move(node));
  return values() - 1;
}

std::vector<Shape> Graph::shapes(std::size_t batch) const {
  std::vector<Shape> all = shapes_;
  for (std::size_t value = 0; value < all.size(); ++value)
    if (value < kFirstNode || value + 1 < all.size()) all[value][0] = batch;  // the loss's output is the same for all
  return all;
}

std::vector<Shape> Graph::input_shapes(const Node& node, std::size_t batch) const {
  std::vector<Shape> all;
  for (const Value input : node.inputs) {
    all.push_back(shapes_.at(input));
    all.back()[0] = batch;
  }
  return all;
}

std::vector<ParameterDeclaration> Graph::parameters(const Node& node) const {
  auto declared = annulus::parameters(node.operation, input_shapes(node, 1));
  for (ParameterDeclaration& p : declared)
    if (std::ranges::find(node.frozen, p.name) != node.frozen.end()) p.role = Role::frozen;
  return declared;
}

std::vector<bool> Graph::required_gradients() const {
  const auto changes = [](const ParameterDeclaration& p) { return p.role != Role::frozen; };
  std::vector<bool> wanted(values(), false);
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    wanted[output(i)] = std::ranges::any_of(parameters(nodes_[i]), changes) ||
                        std::ranges::any_of(nodes_[i].inputs, [&](Value input) { return wanted[input]; });
  return wanted;
}

std::string Graph::description() const {
  std::string text;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    text += fmt::format("{} {} ({}) -> {}\n", nodes_[i].name, annulus::name(nodes_[i].operation),
                        fmt::join(nodes_[i].inputs, ","), to_string(shapes_[output(i)]));
  return text;
}

}  // namespace annulus
