#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "collectives/all_reduce.h"
#include "collectives/gradient_buckets.h"
#include "models/model.h"
#include "src/step/optimizer.h"

namespace annulus {

// How the gradients that a rank computed become the weights that it computes with next. The trainer runs the step; all
// ranks have the same weights after it, and the same bits with every strategy.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // Whether buckets are reduce-scattered instead of all-reduced. (The first one holds the step's metrics, which every
  // rank reads before the update, so it is always all-reduced.)
  virtual bool scatters() const = 0;

  // To be called when the buckets were cut, and before the first step. `buckets` must outlive the strategy. May discard
  // the optimizer's state.
  virtual void plan(const GradientBuckets& buckets) = 0;

  // Updates from the reduced gradients of a bucket. REQUIRES: they have been waited for; all ranks update their buckets
  // in the same order.
  virtual void update(std::size_t bucket) = 0;

  // Returns when this rank has the weights of all buckets that were updated.
  virtual void finish() = 0;

  // Returns one of the optimizer's states as a whole arena with the gradients' layout, until the next step begins. May
  // overwrite the gradients. Collective; to be called between steps.
  virtual DeviceView gather_state(std::size_t number) = 0;
};

// Creates a strategy by its name:
// - "synchronous": gradients are all-reduced, and every rank makes the whole update
// - "sharded": gradients are reduce-scattered, each rank updates its chunk of every bucket, and keeps the optimizer's
//   state of these only; then the weights are all-gathered. No more bytes are sent, except for half of the first
//   bucket. (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020,
//   stage 1.)
// All references must outlive the strategy. REQUIRES for sharded: the weights are in the all-reduce's memory; the
// optimizer neither needs whole parameters nor has a moving average. Throws Error if it cannot be used with this
// all-reduce or device.
std::unique_ptr<Strategy> make_strategy(const std::string& name, Model& model, AllReduce& all_reduce,
                                        Optimizer& optimizer);

// The strategies above.
const std::vector<std::string>& strategy_names();

// For make_strategy().
std::unique_ptr<Strategy> make_synchronous_strategy(Optimizer& optimizer);
std::unique_ptr<Strategy> make_sharded_strategy(Model& model, AllReduce& all_reduce, Optimizer& optimizer);

}  // namespace annulus
