#pragma once

#include <cstdint>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// The cost of one image or window, computed from a graph without a device.
struct Cost {
  std::size_t parameters = 0;       // number of trained values
  std::uint64_t forward_flops = 0;  // of convolutions, products and attention only; a multiply-add counts as 2
  // Of forward and backward: backward computes two products for each of forward's, one if the node's weights are
  // frozen, and none if nothing before it is trained.
  std::uint64_t training_flops = 0;
  std::size_t activation_bytes = 0;  // of the activations kept in memory from forward until backward, in float32

  std::size_t gradient_bytes() const { return parameters * sizeof(float); }  // all-reduced in a step
};

// Returns the cost of each node. Activations are counted as if each value had its own memory.
std::vector<Cost> node_costs(const Graph& graph);

Cost total_cost(const Graph& graph);

}  // namespace annulus
