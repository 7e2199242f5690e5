#pragma once

#include "models/graph.h"

namespace annulus {

// Returns the same network, of which training keeps only the outputs of blocks from forward until backward, and
// computes what is within a block again directly before its backward pass (Chen et al., "Training deep nets with
// sublinear memory cost", 2016). A block ends with a value through which everything passes; a transformer's block is
// two of them, one for each addition. Outputs of batch norms are kept, because a second pass would count a batch twice
// in the running statistics, and so is the last block, with which backward begins. Throws Error if nothing is left to
// recompute.
Graph recompute_blocks(const Graph& graph);

}  // namespace annulus
