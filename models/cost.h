#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"

namespace annulus {

// What one image costs, as a graph tells without a device.
struct Cost {
  std::size_t parameters = 0;        // trained ones
  std::uint64_t forward_flops = 0;   // a multiply-add counts as 2; only what convolutions and dense layers do
  std::size_t activation_bytes = 0;  // of what stays in memory from forward until backward, in float32

  std::size_t gradient_bytes() const { return parameters * sizeof(float); }  // that are summed in a step
  std::uint64_t training_flops() const {
    return 3 * forward_flops;
  }  // backward makes two products for each of forward's
};

// Of each node. Activations are counted as each value having memory of its own.
std::vector<Cost> node_costs(const Graph& graph);

Cost total_cost(const Graph& graph);

}  // namespace annulus
