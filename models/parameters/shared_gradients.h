#pragma once

#include <vector>

#include "models/parameters/parameters.h"

namespace annulus {

// The gradients of parameters that several nodes share: sums of the nodes' own, in the order of backward. The first
// node writes to the parameter's slot in the arena, each other one to its second slot, which is then added. Running
// statistics are weighted as if the nodes had changed them one after the other (join_statistics()).
class SharedGradients {
 public:
  SharedGradients() = default;
  // `order`: of the nodes, all or a stage, in forward. The parameters must outlive the object.
  SharedGradients(const Graph& graph, const std::vector<std::size_t>& order, const Parameters& parameters);

  // Where a node's backward writes the gradient of its parameter. REQUIRES: the parameter has a second slot.
  DeviceView destination(std::size_t node, const Parameter& parameter) const;

  bool any(std::size_t node) const { return node < parts_.size() && !parts_[node].empty(); }
  void add(Device& device, std::size_t node) const;  // to be called after the node's backward

 private:
  struct Part {
    const Parameter* parameter;
    DeviceView written, sum;  // the same for the first node
    float share;              // of a running statistic
  };

  std::vector<std::vector<Part>> parts_;  // of each node of the graph
};

}  // namespace annulus
