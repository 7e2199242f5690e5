#pragma once

#include "models/graph/graph.h"

namespace annulus {

// Returns the same network without the lowest layers' input gradients, which nothing needs because no layer below has
// parameters. So devices plan nothing and need no scratch memory for them.
Graph prune_unused_gradients(const Graph& graph);

}  // namespace annulus
