#include "collectives/shard_tree.h"

#include <catch2/catch.hpp>
#include <string>

#include "kernels/base/error.h"

namespace annulus {

namespace {

// The sum of the shards [begin, end) in the tree's order, as a text such as "((0+1)+2)".
std::string formula(std::size_t begin, std::size_t end, std::size_t width) {
  if (begin + 1 == end) return std::to_string(begin);
  const std::size_t middle = begin + width / 2;
  if (middle >= end) return formula(begin, end, width / 2);
  return "(" + formula(begin, middle, width / 2) + "+" + formula(middle, end, width / 2) + ")";
}

std::string formula(std::size_t shards) {
  std::size_t width = 1;
  while (width < shards) width *= 2;
  return formula(0, shards, width);
}

// Adds up texts as TreeOrder says.
std::vector<std::string> sums(const std::vector<std::string>& arrays, const TreeOrder& order) {
  REQUIRE(order.joins.size() == arrays.size());
  std::vector<std::string> stack;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    stack.push_back(arrays[i]);
    for (std::size_t join = 0; join < order.joins[i]; ++join) {
      const std::string right = stack.back();
      stack.pop_back();
      stack.back() = "(" + stack.back() + "+" + right + ")";
    }
  }
  REQUIRE(stack.size() == order.sums.size());
  return stack;
}

}  // namespace

TEST_CASE("the tree of seven shards is the documented one") {
  CHECK(formula(7) == "(((0+1)+(2+3))+((4+5)+6))");
}

TEST_CASE("any number of ranks adds shards in the order of the same tree") {
  for (std::size_t shards = 1; shards <= 40; ++shards)
    for (std::size_t ranks = 1; ranks <= shards; ++ranks) {
      CAPTURE(shards, ranks);
      std::vector<std::string> partial;
      std::vector<Range> ranges;
      std::size_t most = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const Range own = split(shards, ranks, rank);
        std::vector<std::string> names;
        for (std::size_t shard = own.begin; shard < own.end; ++shard) names.push_back(std::to_string(shard));
        const TreeOrder order = tree_order(rank, ranks, shards);
        const auto of_rank = sums(names, order);
        partial.insert(partial.end(), of_rank.begin(), of_rank.end());
        ranges.insert(ranges.end(), order.sums.begin(), order.sums.end());
        most = std::max(most, of_rank.size());
      }
      const TreeOrder rest = tree_order(ranges, shards);
      REQUIRE(sums(partial, rest) == std::vector{formula(shards)});
      REQUIRE(rest.sums == std::vector<Range>{{0, shards}});
      REQUIRE(most_subtrees(ranks, shards) == most);
    }
}

TEST_CASE("a rank has a single subtree if the shards are a power of two times the ranks") {
  for (std::size_t ranks = 1; ranks <= 20; ++ranks)
    for (const std::size_t each : {1, 2, 4, 8}) CHECK(most_subtrees(ranks, each * ranks) == 1);
  CHECK(tree_order(1, 3, 8).sums == std::vector<Range>{{3, 4}, {4, 6}});
  CHECK(tree_order(0, 3, 8).joins == std::vector<std::size_t>{0, 1, 0});
}

TEST_CASE("fewer shards than ranks are refused") {
  CHECK_THROWS_WITH(tree_order(0, 4, 3), "3 shards are too few for 4 ranks: use --shards 4 or more, or fewer ranks");
}

}  // namespace annulus
