#include "models/cost.h"

namespace annulus {

std::vector<Cost> node_costs(const Graph& graph) {
  const auto shapes = graph.shapes(1);
  std::vector<Cost> costs;
  for (const Node& node : graph.nodes()) {
    const auto inputs = graph.input_shapes(node, 1);
    Cost cost{.forward_flops = flops(node.operation, inputs),
              .activation_bytes = elements(shapes[Graph::output(costs.size())]) * sizeof(float)};
    for (const ParameterDeclaration& p : graph.parameters(node))
      if (trained(p.role)) cost.parameters += elements(p.shape);
    costs.push_back(cost);
  }
  return costs;
}

Cost total_cost(const Graph& graph) {
  Cost total;
  for (const Cost& cost : node_costs(graph)) {
    total.parameters += cost.parameters;
    total.forward_flops += cost.forward_flops;
    total.activation_bytes += cost.activation_bytes;
  }
  return total;
}

}  // namespace annulus
