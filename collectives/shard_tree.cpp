#include "collectives/shard_tree.h"

#include <algorithm>
#include <bit>

#include "kernels/base/error.h"

namespace annulus {
namespace {

// Whether two neighbouring subtrees have the same parent. Only a level's last subtree may be smaller.
bool siblings(const Range& left, const Range& right, std::size_t shards) {
  const std::size_t size = left.size();
  return std::has_single_bit(size) && left.begin % (2 * size) == 0 && right.begin == left.end &&
         right.end == std::min(left.end + size, shards);
}

}  // namespace

void check_shards(std::size_t shards, std::size_t ranks) {
  if (shards < ranks)
    fail("{} shards are too few for {} ranks: use --shards {} or more, or fewer ranks", shards, ranks, ranks);
}

TreeOrder tree_order(std::span<const Range> arrays, std::size_t shards) {
  TreeOrder order;
  std::vector<Range>& stack = order.sums;
  for (const Range& array : arrays) {
    stack.push_back(array);
    std::size_t joins = 0;
    for (; stack.size() > 1 && siblings(stack[stack.size() - 2], stack.back(), shards); ++joins) {
      const std::size_t end = stack.back().end;
      stack.pop_back();
      stack.back().end = end;
    }
    order.joins.push_back(joins);
  }
  return order;
}

TreeOrder tree_order(std::size_t rank, std::size_t ranks, std::size_t shards) {
  check_shards(shards, ranks);
  const Range own = split(shards, ranks, rank);
  std::vector<Range> each;
  for (std::size_t shard = own.begin; shard < own.end; ++shard) each.push_back({shard, shard + 1});
  return tree_order(each, shards);
}

std::size_t most_subtrees(std::size_t ranks, std::size_t shards) {
  std::size_t most = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) most = std::max(most, tree_order(rank, ranks, shards).sums.size());
  return most;
}

}  // namespace annulus
