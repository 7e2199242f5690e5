#pragma once

#include "models/graph/graph.h"

namespace annulus {

// Returns the same network with dropout at this rate on attention weights, after the position embedding, and after each
// per-token dense layer whose output is added to something (a residual branch's end), as GPT-2 is trained. Throws Error
// if there is no such layer.
Graph add_transformer_dropout(const Graph& graph, float rate);

}  // namespace annulus
