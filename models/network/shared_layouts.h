#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// The layouts of parameters that several nodes share, on which these nodes must agree. The first node chooses; if
// another one does not support its choice, all are planned again with the layout of that node.
class SharedLayouts {
 public:
  explicit SharedLayouts(const Graph& graph);

  // The layouts that a node's parameters already have, in the order of their declaration; null for those that it may
  // choose. Empty if it may choose all.
  std::vector<TensorSpec> given(const Node& node) const;

  // Keeps the layouts with which a node was planned. Returns false if all nodes must be planned again. Throws Error if
  // the nodes cannot agree.
  bool keep(const Node& node, const std::vector<TensorSpec>& planned);

 private:
  const Graph& graph_;
  std::set<std::string> shared_, changed_;  // names of parameters
  std::map<std::string, TensorSpec> chosen_;
};

}  // namespace annulus
