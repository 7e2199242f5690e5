#include "models/graph/state_dict.h"

#include <algorithm>
#include <optional>

#include "kernels/base/error.h"

namespace annulus {
namespace {

// Returns the name of a node's first weight, frozen or not; none if the node has no weights.
std::optional<std::string> first_weight(const Graph& graph, const Node& node) {
  const auto declared = parameters(node.operation, graph.input_shapes(node, 1));
  const auto found = std::ranges::find_if(declared, [](const ParameterDeclaration& p) { return trained(p.role); });
  if (found == declared.end()) return std::nullopt;
  return parameter_name(node, found->name);
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Returns the name of the counter beside the running statistics in PyTorch's module; none if no module has these
// statistics.
std::optional<std::string> step_counter(const Node& node) {
  static constexpr std::string_view kMean = "running_mean";
  if (!std::holds_alternative<BatchNorm>(node.operation) || node.shared.contains(std::string(kMean)))
    return std::nullopt;
  std::string name = parameter_name(node, std::string(kMean));
  if (!name.ends_with(kMean)) return std::nullopt;
  return name.replace(name.size() - kMean.size(), kMean.size(), "num_batches_tracked");
}

// Returns the index of the layer that has this parameter.
std::size_t owner_of(const Graph& graph, const std::string& parameter) {
  const auto owner = std::ranges::find_if(graph.nodes(), [&](const Node& node) {
    return std::ranges::any_of(graph.parameters(node), [&](const ParameterDeclaration& p) {
      return parameter_name(node, p.name) == parameter;
    });
  });
  return static_cast<std::size_t>(owner - graph.nodes().begin());
}

}  // namespace

std::vector<StateTensor> state_dict(const Graph& graph) {
  std::vector<StateTensor> tensors;
  for (const Node& node : graph.nodes()) {
    for (const ParameterDeclaration& p : graph.parameters(node)) {
      if (p.role == Role::metric || contains(node.constants, p.name)) continue;
      const std::string name = parameter_name(node, p.name);
      StateTensor tensor{name, name, p.shape, p.shape};
      if (std::holds_alternative<Dense>(node.operation) && p.shape.size() > 1)
        tensor.shape = {p.shape[0], elements(p.shape) / p.shape[0]};
      const auto* linear = std::get_if<Linear>(&node.operation);
      if (const auto* learned = std::get_if<Learned>(&node.operation)) tensor.shape = learned->shape;
      tensor.transposed = linear != nullptr && linear->transposed_in_file && p.shape.size() > 1;
      if (tensor.transposed) std::ranges::reverse(tensor.shape);
      tensors.push_back(tensor);
      const auto aliases = node.aliases.find(p.name);
      if (aliases == node.aliases.end()) continue;
      for (const std::string& alias : aliases->second) {
        tensor.name = alias;
        tensors.push_back(tensor);
      }
    }
    if (const auto counter = step_counter(node))
      tensors.push_back({.name = *counter, .parameter = "", .shape = {}, .parameter_shape = {}, .counts_steps = true});
  }
  return tensors;
}

std::vector<float> transposed(std::span<const float> matrix, const Shape& shape) {
  const std::size_t rows = shape.at(0), columns = shape.at(1);
  std::vector<float> result(matrix.size());
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0; column < columns; ++column)
      result[column * rows + row] = matrix[row * columns + column];
  return result;
}

std::size_t head_of(const Graph& graph) {
  for (std::size_t node = graph.nodes().size(); node-- > 0;)
    if (const auto weight = first_weight(graph, graph.nodes()[node])) return owner_of(graph, *weight);
  fail("this network has no layer with weights");
}

}  // namespace annulus
