#include "models/graph/cost.h"

#include <algorithm>

namespace annulus {
namespace {

// Returns how many products backward computes for each product of forward.
std::uint64_t backward_products(const std::vector<ParameterDeclaration>& parameters, bool runs_backward) {
  if (!runs_backward) return 0;
  return parameters.empty() || std::ranges::any_of(parameters, [](const auto& p) { return trained(p.role); }) ? 2 : 1;
}

}  // namespace

std::vector<Cost> node_costs(const Graph& graph) {
  const auto shapes = graph.shapes(1);
  const auto wanted = graph.required_gradients();
  std::vector<Cost> costs;
  for (const Node& node : graph.nodes()) {
    const auto inputs = graph.input_shapes(node, 1);
    const Value output = Graph::output(costs.size());
    Cost cost{.forward_flops = flops(node.operation, inputs),
              .activation_bytes = elements(shapes[output]) * sizeof(float)};
    cost.training_flops = cost.forward_flops * (1 + backward_products(graph.all_parameters(node), wanted[output]));
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
    total.training_flops += cost.training_flops;
    total.activation_bytes += cost.activation_bytes;
  }
  return total;
}

}  // namespace annulus
