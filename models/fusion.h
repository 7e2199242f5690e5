#pragma once

#include "models/graph.h"

namespace annulus {

// The same network with fewer passes over memory: a ReLU around a max pool, or behind a convolution or a dense layer,
// becomes part of it. A rewrite of the graph, so that all devices profit alike; names of parameters do not change.
Graph fuse(const Graph& graph);

}  // namespace annulus
