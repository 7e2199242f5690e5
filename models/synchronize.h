#pragma once

#include "models/graph.h"

namespace annulus {

// The same network, whose batch norms train with the statistics of all ranks' batches together (see BatchNorm). Throws
// Error where it has none.
Graph synchronize_batch_norms(const Graph& graph);

}  // namespace annulus
