#include "src/train/strategy_options.h"

#include "kernels/base/error.h"
#include "src/step/strategies.h"
#include "src/train/combinations.h"

namespace annulus {

StrategyOptions make_strategy(const StrategyChoice& choice) {
  check_own_options(choice);
  if (choice.pipeline > 1) return Pipeline{choice.pipeline};
  if (choice.name == "local") return Local{choice.sync_every, choice.outer};
  if (choice.name == "async") return Async{choice.sync_every, choice.staleness, choice.servers};
  if (parse_strategy(choice.name) == Strategy::sharded) return Sharded{};
  return Synchronous{};
}

Interval parse_round(const std::string& text) {
  const Interval interval = parse_interval(text);
  if (interval.unit != Interval::Unit::steps && interval.unit != Interval::Unit::seconds)
    fail("'{}' is not the length of a round: give a number of steps, such as 20, or a time, such as 2s", text);
  return interval;
}

std::size_t servers_of(const StrategyOptions& options) {
  const auto* async = std::get_if<Async>(&options);
  return async == nullptr ? 0 : async->servers;
}

std::size_t stages_of(const StrategyOptions& options) {
  const auto* pipeline = std::get_if<Pipeline>(&options);
  return pipeline == nullptr ? 1 : pipeline->stages;
}

}  // namespace annulus
