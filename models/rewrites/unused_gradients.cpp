#include "models/rewrites/unused_gradients.h"

namespace annulus {
namespace {

template <class Layer>
void prune_gradient(Operation& operation) {
  if (auto* layer = std::get_if<Layer>(&operation)) layer->input_gradient = false;
}

}  // namespace

Graph prune_unused_gradients(const Graph& graph) {
  const auto wanted = graph.required_gradients();
  Graph sparing = graph.without_nodes();
  for (Node node : graph.nodes()) {
    if (!node.inputs.empty() && !wanted[node.inputs[0]]) {
      prune_gradient<Convolution>(node.operation);
      prune_gradient<Dense>(node.operation);
    }
    sparing.add(std::move(node));
  }
  return sparing;
}

}  // namespace annulus
