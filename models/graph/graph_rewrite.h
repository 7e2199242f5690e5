#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// A new graph made from an old graph's nodes. Nodes may be changed, added and left out.
struct GraphRewrite {
  explicit GraphRewrite(const Graph& old) : graph(old.without_nodes()), renamed(old.values()) {
    for (const Value outside : {Graph::kImages, Graph::kLabels, Graph::kSampleKeys}) renamed[outside] = outside;
  }

  // Appends a node whose inputs are numbered as in the old graph. Returns the output's number in the new graph.
  Value add(Node node) {
    std::ranges::transform(node.inputs, node.inputs.begin(), [this](Value input) { return renamed[input]; });
    return graph.add(std::move(node));
  }

  Graph graph;
  std::vector<Value> renamed;  // the new graph's number for each old value
};

}  // namespace annulus
