#include "collectives/host/tree_all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "collectives/ring/ring_partition.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

using Subtrees = std::vector<std::vector<Range>>;

// Returns each node's subtrees, rank by rank. The nodes are in across_nodes()'s rank order.
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

// Ranks on nodes with different numbers of ranks cannot be paired: then each counts as a separate node.
bool must_be_apart(const World& world) {
  return world.smallest_node() != world.largest_node() || (world.largest_node() == 1 && world.size() > 1);
}

}  // namespace

TreeAllReduce::TreeAllReduce(const World& world, std::size_t shards, const std::shared_ptr<AllReduceContext>& context)
    : AllReduceAlgorithm({shards > 0 ? fmt::format("tree of {} shards", shards) : "tree of ranks"}, context),
      shards_(shards),
      world_(world),
      apart_(must_be_apart(world)),
      memory_(apart_ ? world.apart().node() : world.node()),
      room_(most_subtrees(static_cast<std::size_t>(world.size()), shard_count())) {
  plan();
}

// Once apart, ranks remain so: each has mapped only private memory. When the ranks continued after the last loss,
// another loss may have interrupted some ranks and not others: they agree on what depends on that.
void TreeAllReduce::continue_in(const World& world) {
  world_ = world;
  std::array<double, 2> agreed{apart_ || must_be_apart(world) ? 1.0 : 0.0, -static_cast<double>(room_)};
  world.maximum(agreed);
  apart_ = agreed[0] != 0;
  if (across_nodes_) bytes_sent_before_ += across_nodes_->bytes_sent();
  across_nodes_.reset();
  memory_.continue_with(apart_ ? world.apart().node() : world.node());
  plan();
  const std::size_t subtrees = most_subtrees(static_cast<std::size_t>(world.size()), shard_count());
  if (static_cast<double>(subtrees) <= -agreed[1]) {
    for (Block& block : blocks_) find_everywhere(block);
    return;
  }
  room_ = 0;
  for (Block& block : blocks_) allocate_addends(block, subtrees);
  room_ = subtrees;
}

std::size_t TreeAllReduce::shard_count() const {
  return shards_ > 0 ? shards_ : static_cast<std::size_t>(world_.size());
}

// Allocates shared memory. If a node has too little, puts all ranks apart, each with private memory.
void TreeAllReduce::share(const std::function<void()>& allocate) {
  if (apart_) return allocate();
  double lacks = 0;
  try {
    allocate();
  } catch (const Error&) {
    if (world_.interrupted()) throw;
    lacks = 1;
  }
  world_.maximum({&lacks, 1});
  if (lacks == 0) return;
  apart_ = lacks_room_ = true;
  memory_.continue_with(world_.apart().node());
  barrier_.emplace(memory_, context());
  plan_sums();
  for (Block& block : blocks_) find_everywhere(block);
  allocate();
}

void TreeAllReduce::plan() {
  share([this] { barrier_.emplace(memory_, context()); });
  plan_sums();
}

void TreeAllReduce::plan_sums() {
  const World placed = apart_ ? world_.apart() : world_;
  const World across = placed.across_nodes();
  std::vector<Subtrees> nodes = subtrees_of_nodes(placed, memory_.node(), shard_count());
  std::vector<std::vector<Range>> sums_of_nodes;
  for (const Subtrees& node : nodes) sums_of_nodes.push_back(TreeSum(node, shard_count()).sums());
  subtrees_ = std::move(nodes[static_cast<std::size_t>(across.rank())]);
  tree_.emplace(subtrees_, shard_count());
  if (across.size() == 1) return;
  across_nodes_.emplace(across, std::move(sums_of_nodes), shard_count(), context(),
                        exchange_rounds(static_cast<std::size_t>(across.size())));
}

std::string TreeAllReduce::way() const {
  if (lacks_room_) return "over MPI messages, because /dev/shm has too little space";
  if (apart_) return "over MPI messages";
  return across_nodes_ ? "in shared memory on each node, between nodes over MPI messages" : "in shared memory";
}

std::span<std::byte> TreeAllReduce::allocate(std::size_t bytes, Memory) {
  Block& block = blocks_.emplace_back();
  share([&] { block.arrays = memory_.allocate(bytes); });
  block.distance = (bytes + kPage - 1) / kPage * kPage;
  allocate_addends(block, room_);
  return block.arrays;
}

void TreeAllReduce::allocate_addends(Block& block, std::size_t subtrees) {
  if (subtrees > 1) share([&] { block.addends = memory_.allocate((subtrees - 1) * block.distance); });
  find_everywhere(block);
}

void TreeAllReduce::find_everywhere(Block& block) {
  const auto copy = [&](std::span<const std::byte> own) {
    const auto found = memory_.everywhere(own);
    return std::vector(found.begin(), found.end());
  };
  block.arrays_everywhere = copy(block.arrays);
  block.addends_everywhere = copy(block.addends);
}

const TreeAllReduce::Block& TreeAllReduce::block_of(const std::byte* values) const {
  for (const Block& block : blocks_)
    if (values >= block.arrays.data() && values < block.arrays.data() + block.arrays.size()) return block;
  fail("an array of shards is not in the all-reduce's memory");
}

// The last addend of a rank on this node is the array itself.
std::byte* TreeAllReduce::addend(const Block& block, std::size_t rank, std::size_t number, std::size_t offset) const {
  return number + 1 == subtrees_[rank].size() ? block.arrays_everywhere[rank] + offset
                                              : block.addends_everywhere[rank] + number * block.distance + offset;
}

DeviceView TreeAllReduce::addend(DeviceView values, std::size_t number) {
  const Block& block = block_of(values.address);
  const auto offset = static_cast<std::size_t>(values.address - block.arrays.data());
  return {addend(block, static_cast<std::size_t>(memory_.node().rank()), number, offset), values.bytes};
}

void TreeAllReduce::run(std::span<float> values, const Collective&) {
  if (values.empty()) return;
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  const Block& block = block_of(bytes);
  const auto offset = static_cast<std::size_t>(bytes - block.arrays.data());
  const std::vector<std::byte*>& everywhere = block.arrays_everywhere;
  const auto rank = static_cast<std::size_t>(memory_.node().rank());
  const Range chunk = RingPartition::chunk_of(values.size(), everywhere.size(), rank);
  const auto at = [&](std::size_t owner) { return reinterpret_cast<float*>(everywhere[owner] + offset) + chunk.begin; };
  const auto addend_of = [&](std::size_t owner, std::size_t number) {
    return reinterpret_cast<float*>(addend(block, owner, number, offset)) + chunk.begin;
  };
  const auto write = [&](const Range& elements, const float* sums) {
    for (std::size_t owner = 0; owner < everywhere.size(); ++owner)
      if (float* const to = at(owner) + elements.begin; to != sums)
        std::memcpy(to, sums, elements.size() * sizeof(float));
  };

  barrier_->wait(1, 2, lane());  // every rank's addends are ready
  if (!across_nodes_) {
    tree_->run(chunk.size(), addend_of,
               [&](std::size_t, const Range& elements, const float* sums) { write(elements, sums); });
  } else {
    const std::size_t count = tree_->sums().size();
    const std::span<float> partial = partial_.first(count * chunk.size());
    partial_at_.clear();
    for (std::size_t i = 0; i < count; ++i) partial_at_.push_back(partial.data() + i * chunk.size());
    tree_->run(chunk.size(), addend_of, [&](std::size_t sum, const Range& elements, const float* sums) {
      std::memcpy(partial.data() + sum * chunk.size() + elements.begin, sums, elements.size() * sizeof(float));
    });
    const std::span<float> sum(at(rank), chunk.size());
    across_nodes_->run(partial_at_, sum);
    write({0, chunk.size()}, sum.data());
  }
  barrier_->wait(2, 2, lane());  // every rank's chunk is complete
}

}  // namespace annulus
