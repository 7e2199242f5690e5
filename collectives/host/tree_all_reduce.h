#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/all_reduce_algorithm.h"
#include "collectives/host/tree_exchange.h"
#include "collectives/host/tree_sum.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/node_barrier.h"
#include "collectives/world/shared_memory.h"
#include "collectives/world/world.h"

namespace annulus {

// The all-reduce for shards: the result has the same bits for any number of ranks, on any nodes, because it is summed
// in shard-tree order (collectives/shard_tree.h).
//
// A rank adds an array per subtree that it has. In each node's shared memory, an array is cut into a chunk per rank on
// the node; each rank sums its chunk over all the node's arrays as far as the tree allows. If there are several nodes,
// ranks with the same chunk exchange these partial sums (TreeExchange), so that a node's network link carries each
// element once. At the end a rank writes the result's chunk into the arrays of all ranks on the node.
//
// If a node has too little shared memory, every rank counts as a separate node.
class TreeAllReduce final : public AllReduceAlgorithm {
 public:
  // `shards` 0: a shard for each surviving rank.
  TreeAllReduce(const World& world, std::size_t shards, const std::shared_ptr<AllReduceContext>& context);

  // REQUIRES: `values` is in allocate()'s memory.
  void run(std::span<float> values, const Collective& collective) override;
  std::span<std::byte> allocate(std::size_t bytes, Memory memory) override;
  DeviceView addend(DeviceView values, std::size_t number) override;
  std::uint64_t bytes_sent() const override {
    return bytes_sent_before_ + (across_nodes_ ? across_nodes_->bytes_sent() : 0);
  }
  std::string way() const override;
  void continue_in(const World& world) override;

 private:
  // Memory for arrays, and behind it their other addends, in sequence. Addresses are listed for all ranks on this node.
  struct Block {
    std::span<std::byte> arrays, addends;  // this rank's
    std::vector<std::byte*> arrays_everywhere, addends_everywhere;
    std::size_t distance;  // between an addend and the next
  };

  std::size_t shard_count() const;
  void plan();
  void plan_sums();
  void share(const std::function<void()>& allocate);
  void allocate_addends(Block& block, std::size_t subtrees);
  void find_everywhere(Block& block);
  const Block& block_of(const std::byte* values) const;
  std::byte* addend(const Block& block, std::size_t rank, std::size_t number, std::size_t offset) const;

  const std::size_t shards_;
  World world_;
  bool apart_;               // every rank counts as a node
  bool lacks_room_ = false;  // because a node has too little shared memory
  SharedMemory memory_;
  std::optional<NodeBarrier> barrier_;
  std::vector<std::vector<Range>> subtrees_;  // for each rank on this node
  std::size_t room_;                          // subtrees per rank that all blocks have memory for, 0 while it changes
  std::optional<TreeSum> tree_;               // over this node
  std::optional<TreeExchange> across_nodes_;
  std::uint64_t bytes_sent_before_ = 0;  // before ranks were lost
  std::vector<Block> blocks_;
  HostArray<float> partial_;  // this node's sums in this rank's chunk, in sequence
  std::vector<const float*> partial_at_;
};

}  // namespace annulus
