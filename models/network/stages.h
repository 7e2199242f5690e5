#pragma once

#include <vector>

#include "kernels/base/split.h"
#include "models/graph/graph.h"

namespace annulus {

// The stages of a pipeline are consecutive ranges of a graph's nodes, each computed by other ranks. The output of a
// stage's last node passes forward to the next stage, and its gradient passes back.
//
// Returns the cut points of a graph, ascending. A cut at n separates nodes n - 1 and n. It is possible if the output of
// node n - 1 is the only value of a node before n that later nodes read, training needs its gradient, and no parameter
// has nodes on both sides, except a token embedding's table.
std::vector<std::size_t> cut_points(const Graph& graph);

// Returns the ranges of nodes between neighbouring cut points, from which stages are made.
std::vector<Range> cut_everywhere(const Graph& graph);

}  // namespace annulus
