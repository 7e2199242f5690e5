#include "src/step/strategy.h"

#include "kernels/base/error.h"

namespace annulus {

std::unique_ptr<Strategy> make_strategy(const std::string& name, Model& model, AllReduce& all_reduce,
                                        Optimizer& optimizer, const RoundOptions& round) {
  if (name == "synchronous") return make_synchronous_strategy(optimizer);
  if (name == "sharded") return make_sharded_strategy(model, all_reduce, optimizer);
  if (name == "local") return make_local_strategy(model, all_reduce, optimizer, round);
  if (name == "async") return make_async_strategy(model, all_reduce, optimizer, round);
  fail("unknown strategy '{}'", name);
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
