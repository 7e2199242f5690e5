#include "models/network/decoding.h"

#include "kernels/base/error.h"

namespace annulus {

Graph decoding_graph(const Graph& graph, std::size_t positions) {
  Graph decoding(TokenShape{1, graph.tokens().vocabulary});
  for (Node node : graph.nodes()) {
    if (const auto* attention = std::get_if<Attention>(&node.operation)) {
      if (!attention->causal) fail("layer {}: its attention is not causal", node.name);
      node.operation = CachedAttention{attention->heads, positions};
      node.inputs = {node.inputs[0], Graph::kLabels};
    } else if (std::holds_alternative<PositionEmbedding>(node.operation)) {
      node.inputs.push_back(Graph::kLabels);
    } else if (const auto* head = std::get_if<LanguageModelHead>(&node.operation)) {
      node.operation = Linear{.units = head->vocabulary, .bias = false};
      node.inputs.pop_back();
    }
    decoding.add(std::move(node));
  }
  return decoding;
}

std::size_t positions_of(const Graph& graph) {
  for (const Node& node : graph.nodes())
    if (const auto* embedding = std::get_if<PositionEmbedding>(&node.operation)) return embedding->positions;
  return graph.tokens().length;
}

}  // namespace annulus
