#include "kernels/base/split.h"

#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("parts differ by at most one, larger ones first, without overlap or gap", "[split]") {
  CHECK(split(7, 3, 0) == Range{0, 3});
  CHECK(split(7, 3, 1) == Range{3, 5});
  CHECK(split(7, 3, 2) == Range{5, 7});
  CHECK(split(1, 2, 0) == Range{0, 1});
  CHECK(split(1, 2, 1) == Range{1, 1});
}

TEST_CASE("blocks are not split; only the last may be shorter", "[split]") {
  CHECK(split_blocks(100, 16, 3, 0) == Range{0, 48});
  CHECK(split_blocks(100, 16, 3, 1) == Range{48, 80});
  CHECK(split_blocks(100, 16, 3, 2) == Range{80, 100});
  CHECK(split_blocks(5, 16, 2, 0) == Range{0, 5});
  CHECK(split_blocks(5, 16, 2, 1) == Range{5, 5});
  CHECK(split_blocks(0, 16, 2, 1) == Range{0, 0});
  // Fewer items than parts, in blocks of any size: the last parts are empty.
  for (const auto& [count, parts] : {std::pair{6u, 4u}, {1u, 8u}, {6u, 3u}, {6u, 2u}})
    for (const std::size_t block : {1u, 4u, 16u}) {
      std::size_t end = 0;
      for (std::size_t part = 0; part < parts; ++part) {
        const Range range = split_blocks(count, block, parts, part);
        CHECK(range.begin == end);
        end = range.end;
      }
      CHECK(end == count);
    }
}

TEST_CASE("parts in proportion to weights cover everything once", "[split]") {
  const std::vector<std::size_t> weights{5, 0, 1, 2};
  CHECK(split_by_weight(8, weights, 0) == Range{0, 5});
  CHECK(split_by_weight(8, weights, 1) == Range{5, 5});
  CHECK(split_by_weight(8, weights, 2) == Range{5, 6});
  CHECK(split_by_weight(8, weights, 3) == Range{6, 8});
  for (const std::size_t count : {0u, 1u, 3u, 100u})
    for (std::size_t part = 0; part <= weights.size(); ++part) {
      const std::size_t end = part < weights.size() ? split_by_weight(count, weights, part).begin : count;
      CHECK(end == (part == 0 ? 0 : split_by_weight(count, weights, part - 1).end));
    }
  CHECK(split_by_weight(4, weights, 0) == Range{0, 2});
}

}  // namespace annulus
