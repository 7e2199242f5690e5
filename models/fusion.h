#pragma once

#include "models/graph.h"

namespace annulus {

// Returns the same network with fewer passes over memory: a ReLU before or after a max pool, or after a convolution, a
// dense layer or a batch norm, becomes part of that operation, and so does an addition after a batch norm. This
// rewrites the graph, so all devices benefit. Names of parameters do not change.
Graph fuse(const Graph& graph);

}  // namespace annulus
