#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/step/step.h"
#include "src/step/strategy.h"

namespace annulus {

// Creates the step of a strategy:
// - synchronous: gradients are all-reduced while backward is still running, and every rank makes the whole update
// - sharded: gradients are reduce-scattered, each rank updates its chunk of every bucket, and keeps the optimizer's
//   state of these only; then the weights are all-gathered, during the next forward pass. No more bytes are sent,
//   except for half of the first bucket. Ranks that share memory have one array of weights in common, and gather
//   nothing. Norms are summed over the ranks' chunks. (Rajbhandari et al., "ZeRO: memory optimizations toward training
//   trillion parameter models", 2020, stage 1.) Bit-identical to synchronous.
// - local: every rank makes several updates of its own weights (local_step.h)
// - async: ranks push gradients to the owners of weights, and pull weights, without a common pace (async_step.h)
// The last two are rounds (round_step.h). REQUIRES for all but synchronous: no shards; for sharded: the weights are in
// the all-reduce's common memory; for rounds: no deferring; for async: no clipping, and the optimizer does not need
// whole parameters. Throws Error if the strategy cannot be used with this all-reduce, or if a compute thread does not
// flush subnormal numbers (kernels/base/subnormals.h).
std::unique_ptr<Step> make_step(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options);

// For Model: allocates gradients in the all-reduce's memory, which needs the fewest copies.
Parameters::Allocate allocate_in(AllReduce& all_reduce);
// Allocates weights as the strategy needs them.
Parameters::Allocate allocate_weights(const StepStrategy& strategy, AllReduce& all_reduce);
// What a rank's optimizer keeps with a strategy, for the optimizer's constructor.
Optimizer::Keeps kept_by(const StepStrategy& strategy);

// When to use which strategy.
struct StrategyUse {
  std::string name, when;
};
const std::vector<StrategyUse>& strategy_uses();
std::vector<std::string> strategy_names();
// A strategy of synchronous steps. Throws Error if the name is none of these.
Strategy parse_strategy(const std::string& name);
std::string to_string(Strategy strategy);

}  // namespace annulus
