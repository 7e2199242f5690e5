#include "models/network/stages.h"

#include <algorithm>

#include "models/parameters/parameter_uses.h"

namespace annulus {
namespace {

// Returns for each node the last node that shares a parameter with it. Only a tied embedding's table may be on two
// stages.
std::vector<std::size_t> last_users(const Graph& graph) {
  std::vector<std::size_t> last(graph.nodes().size());
  const auto tied = find_tied_embedding(graph);
  for (const auto& [name, uses] : find_parameter_uses(graph, {0, graph.nodes().size()}))
    for (const ParameterUse& use : uses)
      if (name != tied) last[use.node] = std::max(last[use.node], uses.back().node);
  return last;
}

}  // namespace

std::vector<std::size_t> cut_points(const Graph& graph) {
  const auto& nodes = graph.nodes();
  const auto wanted = graph.required_gradients();
  std::vector<std::size_t> last_reader(graph.values());
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const Value input : nodes[i].inputs) last_reader[input] = i;
  std::vector<std::size_t> cuts;
  const std::vector<std::size_t> last_user = last_users(graph);
  std::size_t read_until = 0;    // the last reader of any node before n - 1
  std::size_t shared_until = 0;  // the last node that shares a parameter with any node before n
  for (std::size_t n = 1; n < nodes.size(); ++n) {
    const Value crossing = Graph::output(n - 1);
    shared_until = std::max(shared_until, last_user[n - 1]);
    if (read_until < n && shared_until < n && last_reader[crossing] >= n && wanted[crossing]) cuts.push_back(n);
    read_until = std::max(read_until, last_reader[crossing]);
  }
  return cuts;
}

std::vector<Range> cut_everywhere(const Graph& graph) {
  std::vector<Range> ranges;
  std::size_t begin = 0;
  for (const std::size_t cut : cut_points(graph)) {
    ranges.push_back({begin, cut});
    begin = cut;
  }
  ranges.push_back({begin, graph.nodes().size()});
  return ranges;
}

}  // namespace annulus
