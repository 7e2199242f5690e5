#pragma once

#include "models/graph/graph.h"

namespace annulus {

// Returns the same network with dropout of this rate of attention weights, after the position embedding, and after each
// dense layer per token whose output is added to something, which is the end of a residual branch: as GPT-2 is trained.
// Throws Error if there is no such layer.
Graph add_transformer_dropout(const Graph& graph, float rate);

}  // namespace annulus
