#pragma once

#include "models/graph/graph.h"

namespace annulus {

// Returns the same network with batch norms that train with the global batch's statistics (see BatchNorm). Throws Error
// if there is no batch norm.
Graph synchronize_batch_norms(const Graph& graph);

}  // namespace annulus
