#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/split.h"
#include "models/graph/graph.h"

namespace annulus {

// A node that has a parameter, and the parameter's place in the node's declaration.
struct ParameterUse {
  std::size_t node, declared;
};

// The nodes that use each of a graph's parameters, by parameter name, in node order. Several nodes may share a
// parameter (Node::shared), whose gradient is the sum of the nodes' gradients.
using ParameterUses = std::map<std::string, std::vector<ParameterUse>>;

// `nodes`: a stage, or all.
ParameterUses find_parameter_uses(const Graph& graph, const Range& nodes);

// Whether a node leaves its part of a parameter's gradient out of the arena: a token embedding that shares the table
// with a language model's head (Network::EmbeddingGradient).
bool leaves_out(const Graph& graph, const std::vector<ParameterUse>& uses, std::size_t node);

// Returns the node with which a parameter's gradient becomes final in backward, if no node is moved: the first that
// does not leave its part out.
std::size_t last_in_backward(const Graph& graph, const std::vector<ParameterUse>& uses);

// Returns the name of a table that a token embedding shares and whose gradient the embedding leaves out.
std::optional<std::string> find_tied_embedding(const Graph& graph);

// A running statistic that k batches change in turn, r -> (1 - m_i) r + m_i s_i, is changed by all together as by a
// single batch: r -> (1 - momentum) r + momentum x (the sum of shares_i s_i), where the shares add up to 1.
struct JointStatistic {
  float momentum;
  std::vector<float> shares;
};
JointStatistic join_statistics(const std::vector<float>& momenta);

}  // namespace annulus
