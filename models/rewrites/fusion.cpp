#include "models/rewrites/fusion.h"

#include <algorithm>

#include "models/graph/graph_rewrite.h"

namespace annulus {
namespace {

// Returns an operation that replaces both, if there is one.
using Rule = std::optional<Operation> (*)(const Operation& first, const Operation& second);

// The maximum of ReLUs is the ReLU of the maximum, which needs a single ReLU per window.
std::optional<Operation> relu_before_pool(const Operation& first, const Operation& second) {
  const auto* pool = std::get_if<MaxPool>(&second);
  if (!std::holds_alternative<Relu>(first) || pool == nullptr) return std::nullopt;
  return MaxPool{pool->kernel, pool->stride, pool->padding, true};
}

template <class Absorber>
std::optional<Operation> relu_after(const Operation& first, const Operation& second) {
  const auto* absorber = std::get_if<Absorber>(&first);
  if (absorber == nullptr || !std::holds_alternative<Relu>(second)) return std::nullopt;
  Absorber both = *absorber;
  both.relu = true;
  return both;
}

// Fuses a batch norm with the addition of an earlier value that follows it.
std::optional<Operation> add_after_norm(const Operation& first, const Operation& second) {
  const auto* norm = std::get_if<BatchNorm>(&first);
  if (norm == nullptr || norm->add || norm->relu || !std::holds_alternative<Add>(second)) return std::nullopt;
  BatchNorm both = *norm;
  both.add = true;
  return both;
}

std::vector<std::size_t> count_readers(const Graph& graph) {
  std::vector<std::size_t> readers(graph.values());
  for (const Node& node : graph.nodes())
    for (const Value input : node.inputs) ++readers[input];
  return readers;
}

// Returns the second node's inputs other than the first node's output. Returns nothing unless the second node reads
// that output exactly once and no other node reads it.
std::optional<std::vector<Value>> other_inputs(const Node& second, Value first, std::size_t readers) {
  std::vector<Value> others = second.inputs;
  if (readers != 1 || std::erase(others, first) != 1) return std::nullopt;
  return others;
}

// Replaces each pair of neighbours for which the rule has an operation, if only the second reads the first. The new
// node is named like the node with parameters, or else like the second.
Graph merge(const Graph& graph, Rule rule) {
  const auto readers = count_readers(graph);
  GraphRewrite merged(graph);
  const auto& nodes = graph.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Node node = nodes[i];
    std::optional<Operation> both;
    std::optional<std::vector<Value>> others;
    if (i + 1 < nodes.size()) others = other_inputs(nodes[i + 1], Graph::output(i), readers[Graph::output(i)]);
    if (others) both = rule(node.operation, nodes[i + 1].operation);
    if (both) {
      node.inputs.insert(node.inputs.end(), others->begin(), others->end());
      if (std::holds_alternative<Relu>(node.operation)) node.name = nodes[i + 1].name;
      node.operation = *both;
      node.recomputed = nodes[i + 1].recomputed;
    }
    const Value value = merged.add(std::move(node));
    merged.renamed[Graph::output(i)] = value;
    if (both) merged.renamed[Graph::output(++i)] = value;
  }
  return merged.graph;
}

}  // namespace

Graph fuse(const Graph& graph) {
  Graph fused = graph;
  for (const Rule rule : {relu_before_pool, relu_after<MaxPool>, relu_after<Convolution>, relu_after<Dense>,
                          add_after_norm, relu_after<BatchNorm>})
    fused = merge(fused, rule);
  return fused;
}

std::vector<bool> find_only_readers(const Graph& graph) {
  const auto readers = count_readers(graph);
  const auto& nodes = graph.nodes();
  std::vector<bool> only(nodes.size());
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i) {
    const auto& inputs = nodes[i + 1].inputs;
    only[i] = readers[Graph::output(i)] == 1 && !inputs.empty() && inputs[0] == Graph::output(i);
  }
  return only;
}

std::vector<bool> find_pairs(const Graph& graph) {
  const auto& nodes = graph.nodes();
  std::vector<bool> pairs = find_only_readers(graph);
  for (std::size_t i = 0; i + 1 < nodes.size(); ++i)
    pairs[i] = pairs[i] && nodes[i + 1].inputs.size() == 1 && nodes[i].recomputed == nodes[i + 1].recomputed;
  return pairs;
}

std::vector<std::optional<std::size_t>> find_shared_inputs(const Graph& graph) {
  const auto readers = count_readers(graph);
  const auto& nodes = graph.nodes();
  std::vector<std::optional<std::size_t>> found(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto& inputs = nodes[i].inputs;
    if (inputs.size() == 1 && Graph::has_node(inputs[0]) && readers[inputs[0]] > 1 && !nodes[i].recomputed &&
        !graph.node(inputs[0]).recomputed)
      found[i] = inputs[0] - Graph::output(0);
  }
  return found;
}

}  // namespace annulus
