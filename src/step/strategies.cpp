#include "src/step/strategies.h"

#include "kernels/base/error.h"
#include "src/step/async_step.h"
#include "src/step/local_step.h"
#include "src/step/synchronous_step.h"

namespace annulus {

namespace {

bool is_sharded(const StepStrategy& strategy) {
  const auto* synchronous = std::get_if<Strategy>(&strategy);
  return synchronous != nullptr && *synchronous == Strategy::sharded;
}

}  // namespace

std::unique_ptr<Step> make_step(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options) {
  if (std::holds_alternative<LocalRounds>(options.strategy))
    return std::make_unique<LocalStep>(tools, buckets, options);
  if (std::holds_alternative<AsyncRounds>(options.strategy))
    return std::make_unique<AsyncStep>(tools, buckets, options);
  return std::make_unique<SynchronousStep>(tools, buckets, options,
                                           make_update_share(std::get<Strategy>(options.strategy), tools));
}

Parameters::Allocate allocate_in(AllReduce& all_reduce) {
  return [&all_reduce](std::size_t bytes) { return all_reduce.allocate(bytes); };
}

Parameters::Allocate allocate_weights(const StepStrategy& strategy, AllReduce& all_reduce) {
  if (!is_sharded(strategy)) return {};
  return [&all_reduce](std::size_t bytes) { return all_reduce.allocate(bytes, Memory::common); };
}

Optimizer::Keeps kept_by(const StepStrategy& strategy) {
  const bool slices = is_sharded(strategy) || std::holds_alternative<AsyncRounds>(strategy);
  return slices ? Optimizer::Keeps::slices : Optimizer::Keeps::all;
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

Strategy parse_strategy(const std::string& name) {
  for (const Strategy strategy : {Strategy::synchronous, Strategy::sharded})
    if (name == to_string(strategy)) return strategy;
  fail("'{}' is no strategy of synchronous steps", name);
}

std::string to_string(Strategy strategy) {
  return strategy == Strategy::sharded ? "sharded" : "synchronous";
}

}  // namespace annulus
