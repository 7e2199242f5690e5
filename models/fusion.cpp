#include "models/fusion.h"

#include <algorithm>

namespace annulus {
namespace {

// The operation with a ReLU at its end, if it can have one.
bool absorb_relu(Operation& operation) {
  if (auto* convolution = std::get_if<Convolution>(&operation)) return convolution->relu = true;
  if (auto* dense = std::get_if<Dense>(&operation)) return dense->relu = true;
  return false;
}

std::vector<std::size_t> count_readers(const Graph& graph) {
  std::vector<std::size_t> readers(graph.values());
  for (const Node& node : graph.nodes())
    for (const Value input : node.inputs) ++readers[input];
  return readers;
}

}  // namespace

Graph fuse(const Graph& graph) {
  const auto readers = count_readers(graph);
  // A ReLU right behind its producer is dropped when the producer is copied; `renamed` says what became of a value.
  std::vector<Value> renamed(graph.values());
  renamed[Graph::kLabels] = Graph::kLabels;
  Graph fused(graph.image());
  const auto& nodes = graph.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Node node = nodes[i];
    const Value value = Graph::output(i);
    const bool relu_follows = i + 1 < nodes.size() && std::holds_alternative<Relu>(nodes[i + 1].operation) &&
                              nodes[i + 1].inputs[0] == value && readers[value] == 1;
    const bool absorbed = relu_follows && absorb_relu(node.operation);
    std::ranges::transform(node.inputs, node.inputs.begin(), [&](Value input) { return renamed[input]; });
    renamed[value] = fused.add(node.name, node.operation, node.inputs);
    if (absorbed) {
      renamed[value + 1] = renamed[value];
      ++i;
    }
  }
  return fused;
}

}  // namespace annulus
