#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"

namespace annulus {

// The cost of one image, computed from a graph without a device.
struct Cost {
  std::size_t parameters = 0;        // number of trained values
  std::uint64_t forward_flops = 0;   // of convolutions and dense layers only; a multiply-add counts as 2
  std::size_t activation_bytes = 0;  // of the activations kept in memory from forward until backward, in float32

  std::size_t gradient_bytes() const { return parameters * sizeof(float); }  // all-reduced in a step
  // Backward computes two products for each of forward's.
  std::uint64_t training_flops() const { return 3 * forward_flops; }
};

// Returns the cost of each node. Activations are counted as if each value had its own memory.
std::vector<Cost> node_costs(const Graph& graph);

Cost total_cost(const Graph& graph);

}  // namespace annulus
