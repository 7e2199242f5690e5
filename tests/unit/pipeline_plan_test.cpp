#include "src/step/pipeline_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "src/step/pipeline_schedule.h"

namespace annulus {

namespace {

std::vector<SegmentCost> random_costs(std::size_t count, std::uint64_t seed) {
  std::vector<SegmentCost> costs;
  for (std::size_t i = 0; i < count; ++i)
    costs.push_back({.seconds = 1 + static_cast<double>(mix(seed, i) % 100),
                     .parameter_bytes = mix(seed, i, 1) % 1000,
                     .kept_bytes = mix(seed, i, 2) % 1000,
                     .passing_bytes = mix(seed, i, 3) % 100});
  return costs;
}

// The slowest and the largest stage of a partition.
StageCost worst(std::span<const SegmentCost> costs, const std::vector<Range>& stages, std::size_t parts) {
  StageCost most;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const StageCost cost = stage_cost(costs.subspan(stages[stage].begin, stages[stage].size()),
                                      parts_in_flight(stage, stages.size(), parts));
    most = {std::max(most.seconds, cost.seconds), std::max(most.bytes, cost.bytes)};
  }
  return most;
}

void for_each_partition(std::size_t segments, std::size_t stages, std::vector<Range>& begun,
                        const std::function<void(const std::vector<Range>&)>& visit) {
  const std::size_t begin = begun.empty() ? 0 : begun.back().end;
  if (stages == 1) {
    begun.push_back({begin, segments});
    visit(begun);
    begun.pop_back();
    return;
  }
  for (std::size_t end = begin + 1; end + stages - 1 <= segments; ++end) {
    begun.push_back({begin, end});
    for_each_partition(segments, stages - 1, begun, visit);
    begun.pop_back();
  }
}

}  // namespace

TEST_CASE("stages are of equal time if segments are") {
  const std::vector<SegmentCost> costs(8, SegmentCost{.seconds = 1});
  CHECK(choose_stages(costs, 4, 8) == std::vector<Range>{{0, 2}, {2, 4}, {4, 6}, {6, 8}});
  CHECK(choose_stages(costs, 1, 8) == std::vector<Range>{{0, 8}});
  CHECK_THROWS_WITH(choose_stages(costs, 9, 8), "--pipeline 9: this network can be cut into at most 8 stages");
}

TEST_CASE("a stage keeps the activations of all its parts in flight") {
  const std::vector<SegmentCost> costs{{1, 100, 10, 3}, {2, 200, 20, 5}};
  CHECK(stage_cost(costs, 1).bytes == 300 + 30 + 5);
  CHECK(stage_cost(costs, 3).bytes == 300 + 3 * (30 + 5));
  CHECK(stage_cost(costs, 3).seconds == 3);
}

TEST_CASE("no partition that is nearly as fast needs less memory") {
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (std::size_t stages = 1; stages <= 4; ++stages) {
      const std::size_t segments = 9, parts = 3;
      const auto costs = random_costs(segments, seed);
      double fastest = std::numeric_limits<double>::infinity(), leanest = fastest;
      std::vector<Range> begun;
      for_each_partition(segments, stages, begun, [&](const std::vector<Range>& one) {
        fastest = std::min(fastest, worst(costs, one, parts).seconds);
      });
      for_each_partition(segments, stages, begun, [&](const std::vector<Range>& one) {
        const StageCost cost = worst(costs, one, parts);
        if (cost.seconds <= fastest * (1 + kSlower)) leanest = std::min(leanest, static_cast<double>(cost.bytes));
      });
      const StageCost chosen = worst(costs, choose_stages(costs, stages, parts), parts);
      CAPTURE(seed, stages);
      CHECK(chosen.seconds <= fastest * (1 + kSlower));
      CHECK(static_cast<double>(chosen.bytes) == leanest);
    }
}

}  // namespace annulus
