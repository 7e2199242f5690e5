#pragma once

#include <string>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// Whether a pattern, in which * stands for any text and ? for a character, matches a parameter's name, or that of a
// layer or a group of layers that it belongs to: "layer1", "layer1.*", "layer?.*.bn1" and "*.bias" match
// "layer1.0.bn1.bias".
bool matches(const std::string& pattern, const std::string& parameter);

// Throws Error, naming the option and what the network has, if a pattern matches no parameter.
void expect_matches(const Graph& graph, const std::vector<std::string>& patterns, const std::string& option);

// Returns the same network with those parameters frozen that match any of the patterns, if there are any. A batch norm
// whose running statistics are frozen trains with them, as in inference. Throws Error if a pattern matches no
// parameter, if nothing is left to train, or if only one of a batch norm's statistics is frozen.
Graph freeze(const Graph& graph, const std::vector<std::string>& patterns);

// Returns the names of the frozen parameters, in the order of backward.
std::vector<std::string> frozen_names(const Graph& graph);

}  // namespace annulus
