#include "models/parameters/parameter_uses.h"

#include <algorithm>

namespace annulus {
namespace {

bool embeds_tokens(const Graph& graph, std::size_t node) {
  return std::holds_alternative<TokenEmbedding>(graph.nodes()[node].operation);
}

}  // namespace

ParameterUses find_parameter_uses(const Graph& graph, const Range& nodes) {
  ParameterUses uses;
  for (std::size_t node = nodes.begin; node < nodes.end; ++node) {
    const Node& n = graph.nodes()[node];
    const auto declared = graph.all_parameters(n);
    for (std::size_t i = 0; i < declared.size(); ++i) uses[parameter_name(n, declared[i].name)].push_back({node, i});
  }
  return uses;
}

bool leaves_out(const Graph& graph, const std::vector<ParameterUse>& uses, std::size_t node) {
  return embeds_tokens(graph, node) && !embeds_tokens(graph, last_in_backward(graph, uses));
}

std::size_t last_in_backward(const Graph& graph, const std::vector<ParameterUse>& uses) {
  const auto found =
      std::ranges::find_if(uses, [&](const ParameterUse& use) { return !embeds_tokens(graph, use.node); });
  return found == uses.end() ? uses.front().node : found->node;
}

std::optional<std::string> find_tied_embedding(const Graph& graph) {
  for (const auto& [name, uses] : find_parameter_uses(graph, {0, graph.nodes().size()}))
    if (leaves_out(graph, uses, uses.front().node)) return name;
  return std::nullopt;
}

JointStatistic join_statistics(const std::vector<float>& momenta) {
  std::vector<double> shares(momenta.size());
  double kept = 1;  // by the batches after this one
  for (std::size_t i = momenta.size(); i-- > 0;) {
    shares[i] = kept * double{momenta[i]};
    kept *= 1 - double{momenta[i]};
  }
  JointStatistic joint{static_cast<float>(1 - kept), {}};
  for (const double share : shares)
    joint.shares.push_back(
        static_cast<float>(kept < 1 ? share / (1 - kept) : 1.0 / static_cast<double>(shares.size())));
  return joint;
}

}  // namespace annulus
