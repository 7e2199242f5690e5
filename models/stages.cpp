#include "models/stages.h"

#include <algorithm>

namespace annulus {

std::vector<std::size_t> cut_points(const Graph& graph) {
  const auto& nodes = graph.nodes();
  const auto wanted = graph.required_gradients();
  std::vector<std::size_t> last_reader(graph.values());
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const Value input : nodes[i].inputs) last_reader[input] = i;
  std::vector<std::size_t> cuts;
  std::size_t read_until = 0;  // the last reader of the nodes before n - 1
  for (std::size_t n = 1; n < nodes.size(); ++n) {
    const Value crossing = Graph::output(n - 1);
    if (read_until < n && last_reader[crossing] >= n && wanted[crossing]) cuts.push_back(n);
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
