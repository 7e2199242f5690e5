#pragma once

#include <cstdint>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// The cost per image or window, computed from a graph without a device.
struct Cost {
  std::size_t parameters = 0;       // trained values
  std::uint64_t forward_flops = 0;  // convolutions, products and attention only; a multiply-add counts as 2
  // Forward and backward: for each product in forward, backward computes two, or one if the node's weights are frozen,
  // or none if nothing before the node is trained.
  std::uint64_t training_flops = 0;
  std::size_t activation_bytes = 0;  // activations kept in memory from forward until backward, in float32

  std::size_t gradient_bytes() const { return parameters * sizeof(float); }  // all-reduced in a step
};

// Returns each node's cost. Activations are counted as if each value had separate memory.
std::vector<Cost> node_costs(const Graph& graph);

Cost total_cost(const Graph& graph);

}  // namespace annulus
