#pragma once

#include "models/graph/graph.h"

namespace annulus {

// Returns the same network with activation recomputation: from forward to backward, training stores only the blocks'
// outputs, and it recomputes a block's inner activations just before the block's backward pass (Chen et al., "Training
// deep nets with sublinear memory cost", 2016). A block ends at a value through which all paths pass, so a transformer
// block counts as two, each ending at a residual addition. Batch norms' outputs are stored, because a second forward
// pass would update the running statistics twice. The last block is not recomputed, because backward begins with it.
// Throws Error if there is nothing to recompute.
Graph recompute_blocks(const Graph& graph);

}  // namespace annulus
