#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// Layouts of parameters that several nodes share, on which these nodes must agree. The first node chooses; if another
// node does not support that layout, all are planned again with the other node's layout.
class SharedLayouts {
 public:
  explicit SharedLayouts(const Graph& graph);

  // Returns the layouts that a node's parameters already have, in declaration order; null for parameters that the node
  // may choose. Empty if it may choose all.
  std::vector<TensorSpec> given(const Node& node) const;

  // Keeps the layouts with which a node was planned. Returns false if all nodes must be planned again. Throws Error if
  // the nodes cannot agree.
  bool keep(const Node& node, const std::vector<TensorSpec>& planned);

 private:
  const Graph& graph_;
  std::set<std::string> shared_, changed_;  // parameter names
  std::map<std::string, TensorSpec> chosen_;
};

}  // namespace annulus
