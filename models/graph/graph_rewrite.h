#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// A graph that is made from the nodes of another one, the old graph. Nodes may be changed, added and left out.
struct GraphRewrite {
  explicit GraphRewrite(const Graph& old) : graph(old.without_nodes()), renamed(old.values()) {
    for (const Value outside : {Graph::kImages, Graph::kLabels, Graph::kSampleKeys}) renamed[outside] = outside;
  }

  // Appends a node whose inputs are numbered as in the old graph. Returns its output's number in the new one.
  Value add(Node node) {
    std::ranges::transform(node.inputs, node.inputs.begin(), [this](Value input) { return renamed[input]; });
    return graph.add(std::move(node));
  }

  Graph graph;
  std::vector<Value> renamed;  // the number in the new graph of each value of the old one
};

}  // namespace annulus
