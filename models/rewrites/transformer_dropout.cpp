#include "models/rewrites/transformer_dropout.h"

#include "kernels/base/error.h"
#include "models/graph/graph_rewrite.h"
#include "models/zoo/layers.h"

namespace annulus {
namespace {

// Returns for each value whether additions are its only readers.
std::vector<bool> find_addends(const Graph& graph) {
  std::vector<bool> added(graph.values()), read_otherwise(graph.values());
  for (const Node& node : graph.nodes())
    for (const Value input : node.inputs)
      (std::holds_alternative<Add>(node.operation) ? added : read_otherwise)[input] = true;
  for (Value value = 0; value < graph.values(); ++value) added[value] = added[value] && !read_otherwise[value];
  return added;
}

}  // namespace

Graph add_transformer_dropout(const Graph& graph, float rate) {
  const std::vector<bool> added = find_addends(graph);
  GraphRewrite dropping(graph);
  bool any = false;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    Node node = graph.nodes()[i];
    if (auto* attention = std::get_if<Attention>(&node.operation)) {
      attention->dropout = rate;
      attention->number = next_dropout(dropping.graph);
      node.inputs.push_back(Graph::kSampleKeys);
    }
    const bool ends_branch = std::holds_alternative<Linear>(node.operation) && added[Graph::output(i)];
    const bool drops = ends_branch || std::holds_alternative<PositionEmbedding>(node.operation);
    Value& value = dropping.renamed[Graph::output(i)];
    value = dropping.add(node);
    if (drops) value = dropout(dropping.graph, node.name + ".dropout", rate, value);
    any = any || ends_branch;
  }
  if (!any) fail("--dropout: this model has no transformer blocks; leave it out");
  return dropping.graph;
}

}  // namespace annulus
