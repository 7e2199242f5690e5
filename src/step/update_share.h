#pragma once

#include <functional>
#include <memory>

#include "collectives/gradient_buckets.h"
#include "src/step/kept_state.h"
#include "src/step/step_tools.h"
#include "src/step/strategy.h"

namespace annulus {

// The share of a step's updates that this rank makes, and how it gets the weights that other ranks update.
class UpdateShare : public KeptState {
 public:
  // `scatters`: buckets are reduce-scattered instead of all-reduced, and weights gathered. (The first bucket holds the
  // step's metrics, which every rank reads before the update, so it is always all-reduced.) `common`: ranks of a node
  // have one array of weights in common. Then all ranks must have computed a step's gradients before the first update.
  // `measures`: Optimizer::measure_parameters() is to be called before it.
  UpdateShare(bool scatters, bool common, bool measures = false)
      : scatters_(scatters), common_(common), measures_(measures) {}

  bool scatters() const { return scatters_; }
  bool common() const { return common_; }
  bool measures() const { return measures_; }

  // Waits for an operation of the step's all-reduce, or of another, and books the time.
  using Await = std::function<void(AllReduce&, AllReduce::Ticket)>;

  // To be called when the buckets were cut, and before the first step. `buckets` must outlive the share. `sum`: for
  // norms. `await`: for what the update itself exchanges. May discard the optimizer's states and average.
  virtual void plan(const GradientBuckets& buckets, const SumOverRanks& sum, const Await& await) = 0;
  // Updates from the reduced gradients of a bucket. REQUIRES: they have been waited for; all ranks update their buckets
  // in the same order.
  virtual void update(std::size_t bucket) = 0;
  // Begins to gather the weights of a bucket that was updated, and waits until this rank has them. Collective; the
  // first in the same order on all ranks.
  virtual void send_weights(std::size_t /*bucket*/) {}
  virtual void await_weights(std::size_t /*bucket*/) {}

 private:
  const bool scatters_, common_, measures_;
};

// The share of a synchronous step, the whole, or of a sharded one; see make_step(). The tools must outlive it. Throws
// Error if the all-reduce cannot scatter.
std::unique_ptr<UpdateShare> make_update_share(Strategy strategy, const StepTools& tools);

// Returns a slice of an arena; `range` is in floats.
inline DeviceView slice_of(DeviceView arena, const Range& range) {
  return arena.slice(range.begin * sizeof(float), range.size() * sizeof(float));
}

}  // namespace annulus
