#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/split.h"

namespace annulus {

// The order in which a step's shards are summed, whatever ranks compute them: a binary tree over the shards' numbers,
// so the sum has the same bits on any number of ranks. Each level adds pairs of neighbours; for 7 shards:
//
//    shards       0   1   2   3   4   5   6
//    in twos      0+1     2+3     4+5     6
//    in fours     01+23           45+6
//    all          0123+456
//
// A rank has consecutive shards, split(shards, ranks, rank), and first adds up the subtrees that it has completely: one
// if shards = ranks x 2^k. Of three ranks here, rank 0 has shards 0 to 2, the subtrees 0+1 and 2; rank 1 has 3 and 4,
// two subtrees; rank 2 has 5 and 6, also two. These six remain to be all-reduced.

// How to add up arrays, each the sum of a subtree, in the tree's order: for each array in turn, push it on a stack, and
// then joins[i] times replace the upper two by their sum. At the end the stack holds the sums of the subtrees `sums`.
struct TreeOrder {
  std::vector<std::size_t> joins;
  std::vector<Range> sums;
};

// Throws Error if there are fewer shards than ranks.
void check_shards(std::size_t shards, std::size_t ranks);

// `arrays`: disjoint subtrees as ranges of shards, in their order.
TreeOrder tree_order(std::span<const Range> arrays, std::size_t shards);

// The same for a rank's shards one by one. Throws Error as check_shards() does.
TreeOrder tree_order(std::size_t rank, std::size_t ranks, std::size_t shards);

// Returns the largest number of subtrees of any rank.
std::size_t most_subtrees(std::size_t ranks, std::size_t shards);

}  // namespace annulus
