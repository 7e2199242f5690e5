#include "models/rewrites/recompute.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/split.h"

namespace annulus {
namespace {

// Returns each block's nodes: no value that is computed before a block's last node is read after it.
std::vector<Range> find_blocks(const Graph& graph) {
  std::vector<std::size_t> last_reader(graph.values());
  for (std::size_t i = 0; i < graph.nodes().size(); ++i)
    for (const Value input : graph.nodes()[i].inputs) last_reader[input] = i;
  std::vector<Range> blocks;
  std::size_t begin = 0, read_until = 0;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    if (read_until <= i) {
      blocks.push_back({begin, i + 1});
      begin = i + 1;
    }
    read_until = std::max(read_until, last_reader[Graph::output(i)]);
  }
  return blocks;
}

}  // namespace

Graph recompute_blocks(const Graph& graph) {
  std::vector<Range> blocks = find_blocks(graph);
  std::erase_if(blocks, [](const Range& block) { return block.size() == 1; });
  if (blocks.size() < 2) fail("--recompute blocks: this model has no residual blocks; leave it out");
  blocks.pop_back();
  std::vector<Node> nodes = graph.nodes();
  for (const Range& block : blocks)
    for (std::size_t i = block.begin; i + 1 < block.end; ++i)
      nodes[i].recomputed = !std::holds_alternative<BatchNorm>(nodes[i].operation);
  Graph sparing = graph.without_nodes();
  for (Node& node : nodes) sparing.add(std::move(node));
  return sparing;
}

}  // namespace annulus
