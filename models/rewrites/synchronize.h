#pragma once

#include "models/graph/graph.h"

namespace annulus {

// Returns the same network with batch norms that train with the statistics of the global batch (see BatchNorm). Throws
// Error if it has no batch norm.
Graph synchronize_batch_norms(const Graph& graph);

}  // namespace annulus
