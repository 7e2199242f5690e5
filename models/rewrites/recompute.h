#pragma once

#include "models/graph/graph.h"

namespace annulus {

// Returns the same network with activation recomputation: from forward to backward, training stores only the outputs of
// blocks, and it recomputes the activations within a block just before the block's backward pass (Chen et al.,
// "Training deep nets with sublinear memory cost", 2016). A block ends at a value through which all paths pass, so a
// transformer block is two of them, one for each residual addition. Outputs of batch norms are stored, because a second
// forward pass would update the running statistics twice. The last block is not recomputed, because backward begins
// with it. Throws Error if there is nothing to recompute.
Graph recompute_blocks(const Graph& graph);

}  // namespace annulus
