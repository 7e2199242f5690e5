#pragma once

#include "models/graph/graph.h"

namespace annulus {

// Returns a language model's graph that computes token by token, for inference: windows have a single token to read,
// Graph::kLabels are the tokens' positions, and the last value is the next token's logits, {batch, 1, vocabulary}.
// `positions`: maximum text length. REQUIRES: graph.reads_tokens(). Throws Error if the attention is not causal.
Graph decoding_graph(const Graph& graph, std::size_t positions);

// Returns the largest number of positions that the network has been trained for.
std::size_t positions_of(const Graph& graph);

}  // namespace annulus
