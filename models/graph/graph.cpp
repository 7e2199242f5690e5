#include "models/graph/graph.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "kernels/base/error.h"

namespace annulus {
namespace {

void expect_linear(const Shape& of_one, const Shape& of_two) {
  bool linear = of_one.size() == of_two.size();
  for (std::size_t i = 0; linear && i < of_one.size(); ++i)
    linear = of_two[i] == of_one[i] || of_two[i] == 2 * of_one[i];
  if (!linear)
    fail("its output's shape, {} for one sample and {} for two, is not proportional to the batch", to_string(of_one),
         to_string(of_two));
}

Shape with_batch(std::size_t batch, const Shape& rest) {
  Shape shape{batch};
  shape.insert(shape.end(), rest.begin(), rest.end());
  return shape;
}

}  // namespace

Graph::Graph(const ImageShape& image) : Graph(image, std::nullopt, {image.height, image.width, image.channels}) {}

Graph::Graph(const TokenShape& tokens) : Graph({}, tokens, tokens.form().shape()) {}

Graph::Graph(const ImageShape& image, const std::optional<TokenShape>& tokens, const Shape& input)
    : image_(image),
      tokens_(tokens),
      of_one_{with_batch(1, input), {1}, {1}},
      of_two_{with_batch(2, input), {2}, {2}} {}

void Graph::set_labels(LabelForm form, std::size_t width) {
  labels_ = form;
  if (form == LabelForm::mixed) width = 3;
  of_one_[kLabels] = {1};
  of_two_[kLabels] = {2};
  if (form == LabelForm::one_class) return;
  of_one_[kLabels].push_back(width);
  of_two_[kLabels].push_back(width);
}

Graph Graph::without_nodes() const {
  Graph graph = tokens_ ? Graph(*tokens_) : Graph(image_);
  graph.set_labels(labels_, of_one_[kLabels].back());
  return graph;
}

std::string parameter_name(const std::string& layer, const std::string& parameter) {
  if (parameter.empty()) return layer;
  return layer.ends_with('_') ? layer + parameter : layer + "." + parameter;
}

std::string parameter_name(const Node& node, const std::string& parameter) {
  for (const auto* names : {&node.shared, &node.names})
    if (const auto found = names->find(parameter); found != names->end()) return found->second;
  return parameter_name(node.name, parameter);
}

Value Graph::add(Node node) {
  std::vector<ParameterDeclaration> declared;
  try {
    declared = annulus::parameters(node.operation, input_shapes(node, 1));
    expect_shareable(node, declared);
    of_one_.push_back(output_shape(node.operation, input_shapes(node, 1)));
    of_two_.push_back(output_shape(node.operation, input_shapes(node, 2)));
    expect_linear(of_one_.back(), of_two_.back());
  } catch (const Error& error) {
    fail("layer {}: {}", node.name, error.what());
  }
  add_parameters(node, declared);
  nodes_.push_back(std::move(node));
  return values() - 1;
}

Shape Graph::shape(Value value, std::size_t batch) const {
  Shape shape = of_one_.at(value);
  const Shape& of_two = of_two_.at(value);
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != of_two[i]) shape[i] *= batch;
  return shape;
}

Shapes Graph::shapes(std::size_t batch) const {
  Shapes all;
  for (Value value = 0; value < of_one_.size(); ++value) all.push_back(shape(value, batch));
  return all;
}

Shapes Graph::input_shapes(const Node& node, std::size_t batch) const {
  Shapes all;
  for (const Value input : node.inputs) all.push_back(shape(input, batch));
  return all;
}

bool Graph::reads_sample_keys(const Node& node) {
  return std::ranges::find(node.inputs, kSampleKeys) != node.inputs.end();
}

void Graph::expect_shareable(const Node& node, const std::vector<ParameterDeclaration>& declared) const {
  std::set<std::string> names;
  for (const ParameterDeclaration& p : declared) {
    const auto shared = node.shared.find(p.name);
    if (shared == node.shared.end()) continue;
    const std::string& name = shared->second;
    const auto found = parameters_.find(name);
    if (found == parameters_.end()) fail("no layer before it has {}, which it shares", name);
    const ParameterDeclaration& first = found->second;
    if (first.shape != p.shape)
      fail("its {} of {} cannot be shared with {} of {}", p.name, to_string(p.shape), name, to_string(first.shape));
    if (first.role != Role::frozen && (first.role == Role::statistic) != (p.role == Role::statistic))
      fail("its {} cannot be shared with {}: only one of them is a running statistic", p.name, name);
    if (!names.insert(name).second) fail("two of its parameters cannot both be {}", name);
  }
}

void Graph::add_parameters(const Node& node, const std::vector<ParameterDeclaration>& declared) {
  for (ParameterDeclaration p : declared) {
    if (node.shared.contains(p.name)) continue;
    if (std::ranges::find(node.frozen, p.name) != node.frozen.end()) p.role = Role::frozen;
    parameters_.emplace(parameter_name(node, p.name), std::move(p));
  }
}

std::vector<ParameterDeclaration> Graph::all_parameters(const Node& node) const {
  auto declared = annulus::parameters(node.operation, input_shapes(node, 1));
  for (ParameterDeclaration& p : declared) {
    if (std::ranges::find(node.frozen, p.name) != node.frozen.end()) p.role = Role::frozen;
    const auto shared = node.shared.find(p.name);
    if (shared == node.shared.end()) continue;
    const ParameterDeclaration& first = parameters_.at(shared->second);
    p.role = first.role;
    p.initial = first.initial;
    p.stddev = first.stddev;
    p.begins_as_copy = first.begins_as_copy;
  }
  return declared;
}

std::vector<ParameterDeclaration> Graph::parameters(const Node& node) const {
  auto declared = all_parameters(node);
  std::erase_if(declared, [&](const ParameterDeclaration& p) { return node.shared.contains(p.name); });
  return declared;
}

std::vector<bool> Graph::required_gradients() const {
  const auto changes = [](const ParameterDeclaration& p) { return p.role != Role::frozen; };
  std::vector<bool> wanted(values(), false);
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    wanted[output(i)] = std::ranges::any_of(all_parameters(nodes_[i]), changes) ||
                        std::ranges::any_of(nodes_[i].inputs, [&](Value input) { return wanted[input]; });
  return wanted;
}

std::string Graph::description() const {
  std::string text;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    text += fmt::format("{} {} ({}) -> {}\n", nodes_[i].name, annulus::name(nodes_[i].operation),
                        fmt::join(nodes_[i].inputs, ","), to_string(of_one_[output(i)]));
  return text;
}

std::string Graph::samples_text(std::size_t batch) const {
  if (reads_tokens()) return fmt::format("{} windows of {} tokens", batch, tokens().length);
  return fmt::format("{} images of {}x{}x{}", batch, image_.height, image_.width, image_.channels);
}

}  // namespace annulus
