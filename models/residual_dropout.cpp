#include "models/residual_dropout.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "models/layers.h"

namespace annulus {
namespace {

// Returns for each value whether it is only added to others.
std::vector<bool> find_addends(const Graph& graph) {
  std::vector<bool> added(graph.values()), read_otherwise(graph.values());
  for (const Node& node : graph.nodes())
    for (const Value input : node.inputs)
      (std::holds_alternative<Add>(node.operation) ? added : read_otherwise)[input] = true;
  for (Value value = 0; value < graph.values(); ++value) added[value] = added[value] && !read_otherwise[value];
  return added;
}

}  // namespace

Graph add_residual_dropout(const Graph& graph, float rate) {
  const std::vector<bool> added = find_addends(graph);
  Graph dropping = graph.without_nodes();
  std::vector<Value> renamed(graph.values());  // each value's number in the new graph
  for (const Value outside : {Graph::kImages, Graph::kLabels, Graph::kSampleKeys}) renamed[outside] = outside;
  bool any = false;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    Node node = graph.nodes()[i];
    const std::string name = node.name + ".dropout";
    const bool ends_branch = std::holds_alternative<Linear>(node.operation) && added[Graph::output(i)];
    const bool drops = ends_branch || std::holds_alternative<PositionEmbedding>(node.operation);
    std::ranges::transform(node.inputs, node.inputs.begin(), [&](Value input) { return renamed[input]; });
    Value& value = renamed[Graph::output(i)];
    value = dropping.add(std::move(node));
    if (drops) value = dropout(dropping, name, rate, value);
    any = any || ends_branch;
  }
  if (!any) fail("--dropout: this model has no transformer blocks; leave it out");
  return dropping;
}

}  // namespace annulus
