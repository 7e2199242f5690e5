#pragma once

#include "models/graph.h"

namespace annulus {

// The same network, whose lowest layers make no gradients of their inputs, as nothing below them has parameters: so
// devices plan nothing for what nobody will ask for, and keep no scratch for it.
Graph prune_unused_gradients(const Graph& graph);

}  // namespace annulus
