#pragma once

#include "models/graph/graph.h"

namespace annulus {

// Returns the graph of a language model that computes one token at a time, for inference: its windows have one token to
// read, Graph::kLabels are the tokens' positions, and its last value is the logits of the next token, {batch, 1,
// vocabulary}. `positions`: the maximum length of a text. REQUIRES: graph.reads_tokens(). Throws Error if its attention
// is not causal.
Graph decoding_graph(const Graph& graph, std::size_t positions);

// Returns the largest number of positions that the network has been trained for.
std::size_t positions_of(const Graph& graph);

}  // namespace annulus
