#include "src/step/strategies.h"

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
  if (options.strategy == "local") return std::make_unique<LocalStep>(tools, buckets, options);
  if (options.strategy == "async") return std::make_unique<AsyncStep>(tools, buckets, options);
  if (options.strategy == "synchronous" || options.strategy == "sharded")
    return std::make_unique<SynchronousStep>(tools, buckets, options);
  fail("unknown strategy '{}'", options.strategy);
}

Parameters::Allocate allocate_in(AllReduce& all_reduce) {
  return [&all_reduce](std::size_t bytes) { return all_reduce.allocate(bytes); };
}

Parameters::Allocate allocate_weights(const std::string& strategy, AllReduce& all_reduce) {
  if (strategy != "sharded") return {};
  return [&all_reduce](std::size_t bytes) { return all_reduce.allocate(bytes, Memory::common); };
}

Optimizer::Keeps kept_by(const std::string& strategy) {
  return strategy == "sharded" || strategy == "async" ? Optimizer::Keeps::slices : Optimizer::Keeps::all;
}

const std::vector<StrategyUse>& strategy_uses() {
  static const std::vector<StrategyUse> uses{{"synchronous", "by default"},
                                             {"sharded", "if the optimizer's state does not fit into a rank's memory"},
                                             {"local", "if the network is slow, or some ranks are"},
                                             {"async", "if some ranks are slow, or disturbed now and then"}};
  return uses;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const StrategyUse& use : strategy_uses()) names.push_back(use.name);
  return names;
}

}  // namespace annulus
