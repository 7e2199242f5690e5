#include "src/step/pipeline_schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

namespace annulus {

namespace {

constexpr auto kForward = PipelinePass::Kind::forward;
constexpr auto kBackward = PipelinePass::Kind::backward;

std::vector<PipelinePass> listed(std::size_t stage, std::size_t stages, std::size_t parts) {
  std::vector<PipelinePass> passes;
  std::ranges::copy(pipeline_schedule(stage, stages, parts), std::back_inserter(passes));
  return passes;
}

// All stages run their passes, which take one unit of time each, as soon as their inputs are there.
struct Pipeline {
  Pipeline(std::size_t stages, std::size_t parts)
      : stages_(stages), forward(stages, Ends(parts)), backward(stages, Ends(parts)) {
    std::vector<std::vector<PipelinePass>> left;
    for (std::size_t stage = 0; stage < stages; ++stage) left.push_back(listed(stage, stages, parts));
    std::vector<std::size_t> next(stages), free(stages);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < stages; ++stage)
        while (next[stage] < left[stage].size()) {
          const PipelinePass pass = left[stage][next[stage]];
          const auto input = input_of(stage, pass);
          if (!input) break;
          free[stage] = std::max(free[stage], *input) + 1;
          (pass.kind == kForward ? forward : backward)[stage][pass.part] = free[stage];
          ++next[stage];
          moved = true;
        }
    }
    for (std::size_t stage = 0; stage < stages; ++stage) REQUIRE(next[stage] == left[stage].size());  // no deadlock
    length = *std::ranges::max_element(free);
  }

  // When the input of a pass is there; nothing if it is not yet.
  std::optional<std::size_t> input_of(std::size_t stage, const PipelinePass& pass) const {
    if (pass.kind == kForward) return stage == 0 ? 0 : forward[stage - 1][pass.part];
    return stage + 1 == stages_ ? forward[stage][pass.part] : backward[stage + 1][pass.part];
  }

  using Ends = std::vector<std::optional<std::size_t>>;
  std::size_t stages_;
  std::vector<Ends> forward, backward;
  std::size_t length = 0;
};

}  // namespace

TEST_CASE("the schedule of four stages is the one in pipeline_schedule.h") {
  const auto F = [](std::size_t part) { return PipelinePass{kForward, part}; };
  const auto B = [](std::size_t part) { return PipelinePass{kBackward, part}; };
  CHECK(listed(0, 4, 6) == std::vector{F(0), F(1), F(2), F(3), B(0), F(4), B(1), F(5), B(2), B(3), B(4), B(5)});
  CHECK(listed(3, 4, 3) == std::vector{F(0), B(0), F(1), B(1), F(2), B(2)});
  CHECK(listed(0, 4, 2) == std::vector{F(0), F(1), B(0), B(1)});
}

TEST_CASE("a single stage computes part after part") {
  STATIC_REQUIRE(pipeline_schedule(0, 1, 3)[2] == PipelinePass{PipelinePass::Kind::forward, 1});
  STATIC_REQUIRE(pipeline_schedule(0, 1, 3)[3] == PipelinePass{PipelinePass::Kind::backward, 1});
}

TEST_CASE("stages run every pass once, both kinds in the order of the parts") {
  for (std::size_t stages = 1; stages <= 7; ++stages)
    for (std::size_t parts = 1; parts <= 9; ++parts)
      for (std::size_t stage = 0; stage < stages; ++stage) {
        CAPTURE(stages, parts, stage);
        std::size_t forward = 0, backward = 0, most = 0;
        for (const PipelinePass& pass : listed(stage, stages, parts)) {
          std::size_t& next = pass.kind == kForward ? forward : backward;
          REQUIRE(pass.part == next++);
          REQUIRE(backward <= forward);
          most = std::max(most, forward - backward);
        }
        CHECK(forward == parts);
        CHECK(backward == parts);
        CHECK(most == parts_in_flight(stage, stages, parts));
        CHECK(most <= stages - stage);
      }
}

TEST_CASE("the passes of neighbouring stages match, and a step takes M + S - 1 parts' time") {
  for (std::size_t stages = 1; stages <= 7; ++stages)
    for (std::size_t parts = 1; parts <= 9; ++parts) {
      CAPTURE(stages, parts);
      CHECK(Pipeline(stages, parts).length == 2 * (parts + stages - 1));
    }
  CHECK(pipeline_bound(2, 8) == Approx(8.0 / 9));
}

}  // namespace annulus
