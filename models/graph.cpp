#include "models/graph.h"

#include <fmt/ranges.h>

#include <algorithm>

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

Graph::Graph(const TokenShape& tokens) : Graph({}, tokens, {tokens.length + 1}) {}

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
  try {
    for (const auto& [parameter, shared] : node.shared)
      if (find_owner(shared) == nullptr) fail("there is no token embedding with {}", shared);
    of_one_.push_back(output_shape(node.operation, input_shapes(node, 1)));
    of_two_.push_back(output_shape(node.operation, input_shapes(node, 2)));
    expect_linear(of_one_.back(), of_two_.back());
  } catch (const Error& error) {
    fail("layer {}: {}", node.name, error.what());
  }
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

const Node* Graph::find_owner(const std::string& parameter) const {
  const auto owns = [&](const Node& node) {
    return std::holds_alternative<TokenEmbedding>(node.operation) && parameter_name(node.name, "weight") == parameter;
  };
  const auto found = std::ranges::find_if(nodes_, owns);
  return found == nodes_.end() ? nullptr : &*found;
}

std::vector<ParameterDeclaration> Graph::all_parameters(const Node& node) const {
  auto declared = annulus::parameters(node.operation, input_shapes(node, 1));
  for (ParameterDeclaration& p : declared) {
    const auto shared = node.shared.find(p.name);
    const Node& owner = shared == node.shared.end() ? node : *find_owner(shared->second);
    if (std::ranges::find(owner.frozen, p.name) != owner.frozen.end()) p.role = Role::frozen;
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
    wanted[output(i)] = std::ranges::any_of(parameters(nodes_[i]), changes) ||
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
