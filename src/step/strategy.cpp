#include "src/step/strategy.h"

#include "kernels/base/error.h"

namespace annulus {

std::unique_ptr<Strategy> make_strategy(const std::string& name, Model& model, AllReduce& all_reduce,
                                        Optimizer& optimizer) {
  if (name == "synchronous") return make_synchronous_strategy(optimizer);
  if (name == "sharded") return make_sharded_strategy(model, all_reduce, optimizer);
  fail("unknown strategy '{}'", name);
}

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names{"synchronous", "sharded"};
  return names;
}

}  // namespace annulus
