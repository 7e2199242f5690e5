#include "src/train/strategy_plan.h"

#include <catch2/catch.hpp>

namespace annulus {
namespace {

constexpr Interval kSteps{Interval::Unit::steps, 20}, kSeconds{Interval::Unit::seconds, 2};

// Every rank has 3 samples of a step, and rank 0 one more.
StrategyPlan plan(const World& world, const StrategyOptions& strategy, std::size_t workers) {
  TrainOptions options;
  options.strategy = strategy;
  return plan_strategy(world, options, 3 * workers + 1);
}

}  // namespace

TEST_CASE("a strategy plans its steps, and how ranks share them") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  const std::size_t all = 3 * n + 1, own = world.root() ? 4 : 3, least = n == 1 ? 4 : 3;
  for (const StrategyOptions& strategy :
       {StrategyOptions(Synchronous{}), StrategyOptions(Sharded{}), StrategyOptions(Pipeline{})}) {
    const StrategyPlan found = plan(world, strategy, n);
    CHECK(std::get<Strategy>(found.step) ==
          (std::holds_alternative<Sharded>(strategy) ? Strategy::sharded : Strategy::synchronous));
    CHECK((found.steps == 1 && !found.pace && found.largest_part == 0));
    CHECK((found.unit == 1 && found.round.piece_size == 0 && !found.round.planned));
  }

  const StrategyPlan local = plan(world, Local{kSteps, "nesterov"}, n);
  CHECK((local.steps == 20 && !local.pace && local.largest_part == 4));
  CHECK((local.unit == 4 && local.round.piece_size == 0 && !local.round.planned));
  const auto& updates = std::get<LocalRounds>(local.step);
  CHECK((updates.round.batch == 4 && updates.round.ranks == n && updates.outer == "nesterov"));

  const StrategyPlan async = plan(world, Async{kSteps, 3}, n);
  CHECK((async.steps == 20 && !async.pace && async.largest_part == 0));
  CHECK((async.unit == own && async.round.piece_size == all && !async.round.planned));
  const auto& pushes = std::get<AsyncRounds>(async.step);
  CHECK((pushes.round.batch == own && pushes.round.ranks == n && pushes.staleness == 3 && pushes.servers == 0));
  CHECK(pushes.world == &world);

  const StrategyPlan timed = plan(world, Async{kSeconds}, n);
  CHECK((timed.steps == 1 && timed.pace == 2 && timed.unit == least));
  CHECK((timed.round.piece_size == 0 && timed.round.planned));
  CHECK(std::get<AsyncRounds>(timed.step).round.batch == least);
}

TEST_CASE("ranks that only serve have no share, and the others share as if these were all") {
  const World world;
  const auto n = static_cast<std::size_t>(world.size());
  if (n == 1) return;
  const StrategyPlan found = plan(world, Async{.sync_every = kSeconds, .servers = 1}, n - 1);
  const auto& pushes = std::get<AsyncRounds>(found.step);
  CHECK((pushes.servers == 1 && pushes.round.ranks == n - 1));
  CHECK(found.unit == (n == 2 ? 4 : 3));
}

}  // namespace annulus
