#include <catch2/catch.hpp>

#include "src/step/parts.h"

namespace annulus {
namespace {

std::vector<Range> ranges_of(std::span<const BatchPart> parts) {
  std::vector<Range> ranges;
  for (const BatchPart& part : parts) ranges.push_back(part.samples);
  return ranges;
}

}  // namespace

TEST_CASE("a share is cut into at most N even parts, and at least one") {
  PartPlan plan(EvenParts{3});
  CHECK(ranges_of(plan.of(100, 7)) == std::vector<Range>{{0, 3}, {3, 5}, {5, 7}});
  CHECK(ranges_of(plan.of(100, 2)) == std::vector<Range>{{0, 1}, {1, 2}});
  CHECK(ranges_of(plan.of(100, 0)) == std::vector<Range>{{0, 0}});
}

TEST_CASE("the parts of a rank's shards are the same samples as in the whole batch") {
  constexpr std::size_t kShards = 7, kBatch = 12;
  for (const std::size_t ranks : {1, 2, 3}) {
    std::size_t next = 0;  // sample of the batch
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t begin = next;
      const Range shards = split(kShards, ranks, rank);
      const std::size_t share = split(kBatch, kShards, shards.end - 1).end - begin;
      PartPlan plan(ShardParts{kShards, ranks, rank});
      for (const BatchPart& part : plan.of(kBatch, share)) {
        CHECK(part.samples.begin == next - begin);
        next += part.samples.size();
      }
    }
    CHECK(next == kBatch);
  }
  CHECK(ranges_of(PartPlan(ShardParts{4, 2, 1}).of(3, 1)) == std::vector<Range>{{0, 1}, {1, 1}});  // an empty shard
}

TEST_CASE("the last part of equal ones is smaller") {
  PartPlan plan(EqualParts{4});
  CHECK(ranges_of(plan.of(100, 10)) == std::vector<Range>{{0, 4}, {4, 8}, {8, 10}});
  CHECK(ranges_of(plan.of(100, 4)) == std::vector<Range>{{0, 4}});
  CHECK(ranges_of(plan.of(100, 0)) == std::vector<Range>{{0, 0}});
}

TEST_CASE("parts in flight have slots of their own, and one part is the last") {
  PartPlan plan(EvenParts{4}, 0, 2);  // the first of two stages runs one forward pass ahead
  const std::span<const BatchPart> parts = plan.of(8, 8);
  for (const BatchPart& part : parts) {
    CHECK(part.slot == part.number % 2);
    CHECK(part.last == (part.number == 3));
  }
  CHECK(plan.schedule().size() == 8);
  CHECK(plan.schedule()[1] == PipelinePass{PipelinePass::Kind::forward, 1});
}

}  // namespace annulus
