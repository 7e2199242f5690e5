#pragma once

#include "models/graph.h"

namespace annulus {

// The same network with fewer passes over memory: a ReLU around a max pool, or behind a convolution, a dense layer or a
// batch norm, becomes part of it, and so does a sum behind a batch norm. A rewrite of the graph, so that all devices
// profit alike; names of parameters do not change.
Graph fuse(const Graph& graph);

}  // namespace annulus
