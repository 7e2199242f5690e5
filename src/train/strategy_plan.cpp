#include "src/train/strategy_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/job/threads.h"
#include "src/train/training_setup.h"

namespace annulus {
namespace {

// Makes the plan of each strategy.
struct Planner {
  const World& world;
  const TrainOptions& options;
  const std::size_t global_batch, workers;

  StrategyPlan operator()(const Synchronous&) const { return {}; }
  StrategyPlan operator()(const Pipeline&) const { return {}; }
  StrategyPlan operator()(const Sharded&) const { return {.step = Strategy::sharded}; }

  StrategyPlan operator()(const Local& local) const {
    StrategyPlan plan = rounds(local.sync_every);
    plan.unit = plan.largest_part = share(0);
    plan.step = LocalRounds{{plan.unit, workers}, local.outer};
    return plan;
  }

  // In timed rounds parts are the same on all ranks, and ranks times as many samples are not more than the global
  // batch. In others they are those of the steps.
  StrategyPlan operator()(const Async& async) const {
    StrategyPlan plan = rounds(async.sync_every);
    plan.unit = share(plan.pace ? workers - 1 : static_cast<std::size_t>(world.rank()));
    plan.step = AsyncRounds{.round = {plan.unit, workers},
                            .staleness = async.staleness,
                            .servers = static_cast<std::size_t>(world.size()) - workers,
                            .threads = choose_threads(options.device.threads).count,
                            .world = &world};
    if (!plan.pace) plan.round.piece_size = global_batch;
    return plan;
  }

 private:
  std::size_t share(std::size_t rank) const {
    return std::max<std::size_t>(split(global_batch, workers, rank).size(), 1);
  }
  static StrategyPlan rounds(const Interval& every) {
    if (every.unit == Interval::Unit::seconds) return {.round = {.planned = true}, .pace = every.count};
    return {.steps = static_cast<std::size_t>(every.count)};
  }
};

}  // namespace

StrategyPlan plan_strategy(const World& world, const TrainOptions& options, std::size_t global_batch) {
  return std::visit(Planner{world, options, global_batch, workers_of(world, options)}, options.strategy);
}

std::vector<std::string> announcement(const StrategyOptions& options, const StrategyPlan& plan, std::size_t workers) {
  std::vector<std::string> lines;
  if (const auto* local = std::get_if<Local>(&options))
    lines.push_back(fmt::format("rounds      of {}, each update with {} samples; outer optimizer: {}",
                                to_string(local->sync_every), plan.unit, local->outer));
  if (const auto* async = std::get_if<Async>(&options)) {
    lines.push_back(fmt::format("rounds      of {}, each rank at most {} step{} ahead of the slowest",
                                to_string(async->sync_every), async->staleness, async->staleness == 1 ? "" : "s"));
    if (async->servers > 0)
      lines.push_back(fmt::format("servers     {} of the ranks, from rank {} on: they only update weights",
                                  async->servers, workers));
  }
  return lines;
}

std::string summation_note(const StrategyOptions& options) {
  const auto note = [](const Interval& every) { return fmt::format(", rounds of {}", to_string(every)); };
  if (const auto* local = std::get_if<Local>(&options)) return note(local->sync_every);
  if (const auto* async = std::get_if<Async>(&options)) return note(async->sync_every);
  return "";
}

std::string remedies_for_rise(const StrategyOptions& options) {
  return std::holds_alternative<Async>(options) ? "--lr or --staleness" : "--lr";
}

}  // namespace annulus
