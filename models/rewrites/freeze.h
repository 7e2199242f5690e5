#pragma once

#include <string>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// Whether a pattern, in which * stands for any text and ? for a character, matches the name of a parameter, of its
// layer or of an enclosing group of layers: "layer1", "layer1.*", "layer?.*.bn1" and "*.bias" match
// "layer1.0.bn1.bias".
bool matches(const std::string& pattern, const std::string& parameter);

// Throws Error, naming the option and what the network has, if a pattern matches no parameter.
void expect_matches(const Graph& graph, const std::vector<std::string>& patterns, const std::string& option);

// Returns the same network with all parameters frozen that match a pattern, if there are patterns. A batch norm whose
// running statistics are frozen trains with them, as in inference. Throws Error if a pattern matches no parameter, if
// nothing is left to train, or if a batch norm's two statistics are not frozen together.
Graph freeze(const Graph& graph, const std::vector<std::string>& patterns);

// Returns the frozen parameters' names, in backward order.
std::vector<std::string> frozen_names(const Graph& graph);

}  // namespace annulus
