#include "src/step/strategies.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "src/step/async_step.h"
#include "src/step/local_step.h"
#include "src/step/synchronous_step.h"

namespace annulus {

PartPlan StepOptions::part_plan() const {
  if (round.batch > 0) return PartPlan(EqualParts{round.batch});
  if (shards > 0) return PartPlan(ShardParts{shards, ranks, rank});
  if (pipeline != nullptr) return PartPlan(EvenParts{parts}, pipeline->stage(), pipeline->stages());
  return PartPlan(EvenParts{parts});
}

std::unique_ptr<Step> make_step(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options) {
  if (options.strategy == Strategy::local) return std::make_unique<LocalStep>(tools, buckets, options);
  if (options.strategy == Strategy::async) return std::make_unique<AsyncStep>(tools, buckets, options);
  return std::make_unique<SynchronousStep>(tools, buckets, options, make_update_share(options.strategy, tools));
}

Parameters::Allocate allocate_in(AllReduce& all_reduce) {
  return [&all_reduce](std::size_t bytes) { return all_reduce.allocate(bytes); };
}

Parameters::Allocate allocate_weights(Strategy strategy, AllReduce& all_reduce) {
  if (strategy != Strategy::sharded) return {};
  return [&all_reduce](std::size_t bytes) { return all_reduce.allocate(bytes, Memory::common); };
}

Optimizer::Keeps kept_by(Strategy strategy) {
  const bool all = strategy == Strategy::synchronous || strategy == Strategy::local;
  return all ? Optimizer::Keeps::all : Optimizer::Keeps::slices;
}

const std::vector<StrategyUse>& strategy_uses() {
  static const std::vector<StrategyUse> uses{
      {Strategy::synchronous, "synchronous", "by default"},
      {Strategy::sharded, "sharded", "if the optimizer's state does not fit into a rank's memory"},
      {Strategy::local, "local", "if the network is slow, or some ranks are"},
      {Strategy::async, "async", "if some ranks are slow, or disturbed now and then"}};
  return uses;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const StrategyUse& use : strategy_uses()) names.push_back(use.name);
  return names;
}

Strategy parse_strategy(const std::string& name) {
  const auto found = std::ranges::find(strategy_uses(), name, &StrategyUse::name);
  if (found == strategy_uses().end()) fail("unknown strategy '{}'", name);
  return found->strategy;
}

std::string to_string(Strategy strategy) {
  return std::ranges::find(strategy_uses(), strategy, &StrategyUse::strategy)->name;
}

}  // namespace annulus
