#include "collectives/host/tree_all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "collectives/ring/ring_partition.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

using Subtrees = std::vector<std::vector<Range>>;

// Returns each node's subtrees, of its ranks one by one. The nodes are in the order of across_nodes()'s ranks.
std::vector<Subtrees> subtrees_of_nodes(const World& world, const World& node, std::size_t shards) {
  const std::vector<std::uint64_t> leaders = world.gather(static_cast<std::uint64_t>(node.rank_in_job(0)));
  std::map<std::uint64_t, std::vector<std::size_t>> ranks_of_node;
  for (std::size_t rank = 0; rank < leaders.size(); ++rank) ranks_of_node[leaders[rank]].push_back(rank);
  std::vector<std::vector<std::size_t>> nodes;
  for (const auto& [leader, ranks] : ranks_of_node) nodes.push_back(ranks);
  std::ranges::sort(nodes, {}, [&](const auto& ranks) { return ranks[static_cast<std::size_t>(node.rank())]; });
  std::vector<Subtrees> all;
  for (const auto& ranks : nodes)
    for (Subtrees& of_node = all.emplace_back(); const std::size_t rank : ranks)
      of_node.push_back(tree_order(rank, leaders.size(), shards).sums);
  return all;
}

}  // namespace

TreeAllReduce::TreeAllReduce(const World& world, std::size_t shards, const std::shared_ptr<AllReduceContext>& context)
    : AllReduceAlgorithm({fmt::format("tree of {} shards", shards)}),
      memory_(world.node()),
      barrier_(memory_, context),
      most_subtrees_(most_subtrees(static_cast<std::size_t>(world.size()), shards)) {
  const World across = world.across_nodes();
  std::vector<Subtrees> nodes = subtrees_of_nodes(world, memory_.node(), shards);
  std::vector<std::vector<Range>> sums_of_nodes;
  for (const Subtrees& node : nodes) sums_of_nodes.push_back(TreeSum(node, shards).sums());
  subtrees_ = std::move(nodes[static_cast<std::size_t>(across.rank())]);
  tree_.emplace(subtrees_, shards);
  if (across.size() > 1) across_nodes_.emplace(across, std::move(sums_of_nodes), shards, context);
}

void TreeAllReduce::record_to(TraceLane* lane) {
  AllReduceAlgorithm::record_to(lane);
  if (across_nodes_) across_nodes_->record_to(lane);
}

std::span<std::byte> TreeAllReduce::allocate(std::size_t bytes) {
  const std::size_t distance = (bytes + kPage - 1) / kPage * kPage;
  const std::span<std::byte> arrays = memory_.allocate(most_subtrees_ * distance).first(bytes);
  blocks_.push_back({arrays, distance});
  return arrays;
}

std::size_t TreeAllReduce::distance_of(const std::byte* values) const {
  for (const Block& block : blocks_)
    if (values >= block.arrays.data() && values < block.arrays.data() + block.arrays.size()) return block.distance;
  fail("an array of shards is not in the all-reduce's memory");
}

// The last addend is the array itself, and the others follow behind it.
std::size_t TreeAllReduce::offset_of(std::size_t number, std::size_t subtrees, std::size_t distance) const {
  return number + 1 == subtrees ? 0 : (number + 1) * distance;
}

DeviceView TreeAllReduce::addend(DeviceView values, std::size_t number) {
  const std::size_t own = subtrees_[static_cast<std::size_t>(memory_.node().rank())].size();
  return {values.address + offset_of(number, own, distance_of(values.address)), values.bytes};
}

void TreeAllReduce::all_reduce(std::span<float> values) {
  if (values.empty()) return;
  const auto everywhere = memory_.everywhere(std::as_bytes(values));
  const auto rank = static_cast<std::size_t>(memory_.node().rank());
  const std::size_t distance = distance_of(everywhere[rank]);
  const Range chunk = RingPartition::chunk_of(values.size(), everywhere.size(), rank);
  const auto at = [&](std::size_t owner, std::size_t offset) {
    return reinterpret_cast<float*>(everywhere[owner] + offset) + chunk.begin;
  };
  const auto addend = [&](std::size_t owner, std::size_t number) {
    return at(owner, offset_of(number, subtrees_[owner].size(), distance));
  };
  const auto write = [&](const Range& elements, const float* sums) {
    for (std::size_t owner = 0; owner < everywhere.size(); ++owner)
      if (float* const to = at(owner, 0) + elements.begin; to != sums)
        std::memcpy(to, sums, elements.size() * sizeof(float));
  };

  barrier_.wait(1, 2, lane_);  // every rank's addends are ready
  if (!across_nodes_) {
    tree_->run(chunk.size(), addend, [&](std::size_t, const Range& block, const float* sums) { write(block, sums); });
  } else {
    const std::size_t count = tree_->sums().size();
    const std::span<float> partial = partial_.first(count * chunk.size());
    partial_at_.clear();
    for (std::size_t i = 0; i < count; ++i) partial_at_.push_back(partial.data() + i * chunk.size());
    tree_->run(chunk.size(), addend, [&](std::size_t sum, const Range& block, const float* sums) {
      std::memcpy(partial.data() + sum * chunk.size() + block.begin, sums, block.size() * sizeof(float));
    });
    const std::span<float> sum(at(rank, 0), chunk.size());
    across_nodes_->run(partial_at_, sum);
    write({0, chunk.size()}, sum.data());
  }
  barrier_.wait(2, 2, lane_);  // every rank's chunk is complete
}

}  // namespace annulus
