#pragma once

#include <vector>

#include "models/parameters/parameters.h"

namespace annulus {

// Gradients of parameters that several nodes share: the sums over the nodes, in backward order. The first node writes
// to the parameter's slot in the arena, each later node to the second slot, which is then added. Running statistics are
// weighted as if the nodes had changed them in turn (join_statistics()).
class SharedGradients {
 public:
  SharedGradients() = default;
  // `order`: forward's node order, for all nodes or a stage. The parameters must outlive the object.
  SharedGradients(const Graph& graph, const std::vector<std::size_t>& order, const Parameters& parameters);

  // Returns where a node's backward writes a parameter's gradient. REQUIRES: the parameter has a second slot.
  DeviceView destination(std::size_t node, const Parameter& parameter) const;

  bool any(std::size_t node) const { return node < parts_.size() && !parts_[node].empty(); }
  void add(Device& device, std::size_t node) const;  // to be called after the node's backward

 private:
  struct Part {
    const Parameter* parameter;
    DeviceView written, sum;  // the same for the first node
    float share;              // of a running statistic
  };

  std::vector<std::vector<Part>> parts_;  // for each node in the graph
};

}  // namespace annulus
