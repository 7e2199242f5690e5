#include "models/state_dict.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace annulus {
namespace {

bool has_weights(const Graph& graph, const Node& node) {
  const auto declared = parameters(node.operation, graph.input_shapes(node, 1));
  return std::ranges::any_of(declared, [](const ParameterDeclaration& p) { return trained(p.role); });
}

}  // namespace

std::vector<StateTensor> state_dict(const Graph& graph) {
  std::vector<StateTensor> tensors;
  for (const Node& node : graph.nodes()) {
    for (const ParameterDeclaration& p : parameters(node.operation, graph.input_shapes(node, 1))) {
      if (p.role == Role::metric) continue;
      const bool flat = std::holds_alternative<Dense>(node.operation) && p.shape.size() > 1;
      tensors.push_back({parameter_name(node.name, p.name),
                         flat ? Shape{p.shape[0], elements(p.shape) / p.shape[0]} : p.shape, p.shape});
    }
    if (std::holds_alternative<BatchNorm>(node.operation))
      tensors.push_back({node.name + ".num_batches_tracked", {}, {}, true});
  }
  return tensors;
}

std::size_t head_of(const Graph& graph) {
  for (std::size_t node = graph.nodes().size(); node-- > 0;)
    if (has_weights(graph, graph.nodes()[node])) return node;
  fail("this network has no layer with weights");
}

}  // namespace annulus
