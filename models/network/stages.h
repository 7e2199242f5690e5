#pragma once

#include <vector>

#include "kernels/base/split.h"
#include "models/graph/graph.h"

namespace annulus {

// A pipeline's stages are consecutive ranges of a graph's nodes, each computed by other ranks. The last node's output
// passes forward to the next stage, and the output's gradient passes back.
//
// Returns a graph's cut points, ascending. A cut at n separates nodes n - 1 and n. It is possible if the only value
// from before n that later nodes read is the output of node n - 1, training needs that output's gradient, and no
// parameter has nodes on both sides, except a token embedding's table.
std::vector<std::size_t> cut_points(const Graph& graph);

// Returns the node ranges between neighbouring cut points, from which stages are made.
std::vector<Range> cut_everywhere(const Graph& graph);

}  // namespace annulus
