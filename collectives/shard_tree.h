#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/split.h"

namespace annulus {

// The order in which a step's shards are summed, on whichever rank each is computed: a binary tree over the shards'
// numbers, so the sum has the same bits for any number of ranks. Each level adds pairs of neighbours; for 7 shards:
//
//    shards       0   1   2   3   4   5   6
//    in twos      0+1     2+3     4+5     6
//    in fours     01+23           45+6
//    all          0123+456
//
// A rank has consecutive shards, split(shards, ranks, rank), and first adds up the subtrees that it has completely: a
// single subtree if shards = ranks x 2^k. With three ranks here, rank 0 has shards 0 to 2, the subtrees 0+1 and 2; rank
// 1 has 3 and 4, two subtrees; rank 2 has 5 and 6, also two. These six remain to be all-reduced.

// Says how to add arrays, each the sum over a subtree, in tree order: push each array in turn on a stack, and then
// joins[i] times replace the upper two by their sum. At the end the stack holds the sums over the subtrees `sums`.
struct TreeOrder {
  std::vector<std::size_t> joins;
  std::vector<Range> sums;
};

// Throws Error if there are fewer shards than ranks.
void check_shards(std::size_t shards, std::size_t ranks);

// `arrays`: disjoint subtrees as ascending shard ranges.
TreeOrder tree_order(std::span<const Range> arrays, std::size_t shards);

// Returns the order for a rank's shards taken singly. Throws Error as check_shards() does.
TreeOrder tree_order(std::size_t rank, std::size_t ranks, std::size_t shards);

// Returns the largest number of subtrees on any rank.
std::size_t most_subtrees(std::size_t ranks, std::size_t shards);

}  // namespace annulus
