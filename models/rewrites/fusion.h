#pragma once

#include <optional>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// Returns the same network with fewer passes over memory: a ReLU before or after a max pool, or after a convolution, a
// dense layer or a batch norm, becomes part of that operation, and so does an addition after a batch norm. This
// rewrites the graph, so all devices benefit. Parameter names do not change.
Graph fuse(const Graph& graph);

// Returns for every node whether the next node reads it as the first input, and nothing else reads it.
std::vector<bool> find_only_readers(const Graph& graph);

// Returns for every node whether a device may fuse it with the next node (NeighbourFusion): the next node has this
// node's output as the only input, nothing else reads that output, and both are recomputed in backward or neither.
std::vector<bool> find_pairs(const Graph& graph);

// Returns for every node with a single input the earlier node that computes the input, if other nodes read that input,
// too, and neither of the two is recomputed.
std::vector<std::optional<std::size_t>> find_shared_inputs(const Graph& graph);

}  // namespace annulus
