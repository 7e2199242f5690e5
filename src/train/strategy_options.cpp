#include "src/train/strategy_options.h"

#include "kernels/base/error.h"
#include "src/step/strategies.h"
#include "src/train/combinations.h"

namespace annulus {

StrategyOptions make_strategy(const StrategyChoice& choice) {
  check_own_options(choice);
  if (choice.pipeline > 1) return Pipeline{choice.pipeline};
  switch (parse_strategy(choice.name)) {
    case Strategy::synchronous:
      return Synchronous{};
    case Strategy::sharded:
      return Sharded{};
    case Strategy::local:
      return Local{choice.sync_every, choice.outer};
    case Strategy::async:
      return Async{choice.sync_every, choice.staleness, choice.servers};
  }
  return Synchronous{};
}

Strategy strategy_of(const StrategyOptions& options) {
  if (std::holds_alternative<Sharded>(options)) return Strategy::sharded;
  if (std::holds_alternative<Local>(options)) return Strategy::local;
  if (std::holds_alternative<Async>(options)) return Strategy::async;
  return Strategy::synchronous;
}

const Interval* round_of(const StrategyOptions& options) {
  if (const auto* local = std::get_if<Local>(&options)) return &local->sync_every;
  if (const auto* async = std::get_if<Async>(&options)) return &async->sync_every;
  return nullptr;
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
