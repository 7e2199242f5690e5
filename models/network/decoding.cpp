#include "models/network/decoding.h"

#include "kernels/base/error.h"

namespace annulus {
namespace {

// Throws Error if a value of the network, {1, length, width}, is not {1, 1, width} for a single token: then the network
// computes tokens together, other than by attention.
void expect_by_token(const Graph& graph, const Graph& decoding, std::size_t node) {
  const Value value = Graph::output(node);
  Shape shape = graph.shape(value, 1);
  if (shape == graph.shape(value, 2)) return;  // it does not depend on the tokens
  const bool by_token = shape.size() == 3 && shape[1] == graph.tokens().length;
  if (by_token) shape[1] = 1;
  if (!by_token || decoding.shape(value, 1) != shape)
    fail("layer {}: it cannot be computed token by token: generate needs fused attention and a position embedding",
         graph.nodes()[node].name);
}

}  // namespace

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
      node.operation = Linear{.units = head->vocabulary, .bias = head->bias};
      node.inputs.pop_back();
    }
    const bool ends = std::holds_alternative<LanguageModelHead>(graph.nodes()[decoding.nodes().size()].operation);
    decoding.add(std::move(node));
    if (!ends) expect_by_token(graph, decoding, decoding.nodes().size() - 1);
  }
  return decoding;
}

std::size_t positions_of(const Graph& graph) {
  for (const Node& node : graph.nodes())
    if (const auto* embedding = std::get_if<PositionEmbedding>(&node.operation)) return embedding->positions;
  return graph.tokens().length;
}

}  // namespace annulus
