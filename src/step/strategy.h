#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/all_reduce.h"
#include "collectives/gradient_buckets.h"
#include "collectives/world/world.h"
#include "models/model.h"
#include "src/data/sampler.h"
#include "src/step/optimizer.h"

namespace annulus {

// Options of strategies with rounds.
struct RoundOptions {
  std::size_t batch = 0;          // samples of a part of a rank's share
  std::string outer = "average";  // the outer optimizer of local, see make_strategy()
  std::size_t ranks = 1;          // those that compute
  std::size_t global_batch = 0;   // samples of a step (async)
  std::size_t staleness = 0;      // the most steps that a rank may be ahead of the slowest one (async)
  std::size_t servers = 0;        // ranks after those that compute, which only serve; 0: all ranks do (async)
  int threads = 1;                // of the host beside a GPU, if this rank's share of the processors allows it (async)
  const World* world = nullptr;   // all ranks (async)
};

// Of an arena; `range` in floats.
inline DeviceView slice_of(DeviceView arena, const Range& range) {
  return arena.slice(range.begin * sizeof(float), range.size() * sizeof(float));
}

// How the gradients that a rank computed become the weights that it computes with next. The trainer runs the step; all
// ranks have the same weights after it.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // Whether buckets are reduce-scattered instead of all-reduced. (The first one holds the step's metrics, which every
  // rank reads before the update, so it is always all-reduced.)
  virtual bool scatters() const = 0;

  // Whether ranks of a node have one array of weights in common. Then all ranks must have computed a step's gradients
  // before the first update.
  virtual bool has_common_weights() const { return false; }

  // Whether a step is a round, of several steps: a rank computes its share part by part, each with other weights, and
  // ranks meet at its end. If not, the functions that follow are not called.
  virtual bool has_rounds() const { return false; }
  virtual void begin_round(const StepPlan& /*round*/) {}
  // Before a part's forward pass: waits for other ranks, also after the last part; then gets the weights.
  virtual void await_part(std::size_t /*number*/) {}
  virtual void begin_part(std::size_t /*number*/) {}
  // The number of samples of which a part's gradients are the mean, after its own are added to those of others.
  virtual std::size_t mean_over(std::size_t /*number*/, std::size_t samples) const { return samples; }
  // After its backward pass. `clip_norm`: see StepOptions.
  virtual void end_part(std::size_t /*number*/, float /*clip_norm*/) {}
  // After the last part; `weight`: this rank's share of the round's samples. If there are differences(), writes this
  // rank's times `weight`.
  virtual void end_round(float /*weight*/) {}
  // The arena that is all-reduced after a round, with the gradients' layout; empty: only metrics are.
  virtual DeviceView differences() const { return {}; }
  // The number of updates between the weights of the part that was begun and the update by its gradients; none if
  // weights are this rank's own.
  virtual std::optional<std::size_t> staleness() const { return {}; }

  // To be called when the buckets were cut, and before the first step. `buckets` must outlive the strategy. `sum`: for
  // norms, if each rank's optimizer keeps a part. May discard the optimizer's states and average.
  virtual void plan(const GradientBuckets& buckets, const SumOverRanks& sum) = 0;

  // Updates from the reduced gradients of a bucket. REQUIRES: they have been waited for; all ranks update their buckets
  // in the same order.
  virtual void update(std::size_t bucket) = 0;

  // If buckets are reduce-scattered, begins to gather the weights of one that was updated, and waits until this rank
  // has them. Collective; the first in the same order on all ranks.
  virtual void send_weights(std::size_t /*bucket*/) {}
  virtual void await_weights(std::size_t /*bucket*/) {}

  // Swaps the weights that are not frozen with `other`, a whole arena with the gradients' layout, the same on all
  // ranks. Collective; to be called between steps.
  virtual void swap_weights(Parameters& parameters, DeviceView other) { parameters.swap_weights(other); }

  // Gets the common weights, if a round has left this rank with its own. Collective.
  virtual void finish() {}

  // Returns one of the optimizer's states, or its average, as a whole arena with the gradients' layout, until the next
  // step begins; if each rank has its own, their mean. May overwrite the gradients. Collective; to be called between
  // steps.
  virtual DeviceView gather(DeviceView state) = 0;
  // Continues with what gather() returned for a state, if each rank has its own.
  virtual void adopt(DeviceView /*gathered*/, DeviceView /*state*/) {}

  // The state of the outer optimizer, an arena with the gradients' layout; empty if there is none.
  virtual DeviceView outer_velocity() { return {}; }

  // Continues after a round was interrupted because ranks were lost, with those that are left. plan() follows. The
  // optimizer's state and the weights are set afterwards.
  virtual void continue_with(const RoundOptions& /*round*/) {}
};

// Creates a strategy by its name:
// - "synchronous": gradients are all-reduced, and every rank makes the whole update
// - "sharded": gradients are reduce-scattered, each rank updates its chunk of every bucket, and keeps the optimizer's
//   state of these only; then the weights are all-gathered, during the next forward pass. No more bytes are sent,
//   except for half of the first bucket. Ranks that share memory have one array of weights in common, and gather
//   nothing. Norms are summed over the ranks' chunks. (Rajbhandari et al., "ZeRO: memory optimizations toward training
//   trillion parameter models", 2020, stage 1.) The bits are those of synchronous.
// - "local": every rank makes several updates of its own weights; then the mean of the ranks' differences, weighted by
//   their samples, updates the common weights. With the outer optimizer "average", these become the mean of the ranks'
//   weights (local SGD: Stich, "Local SGD converges fast and communicates little", ICLR 2019), with "nesterov" they
//   move by SGD with Nesterov momentum 0.5 and rate 0.5 (Douillard et al., "DiLoCo: distributed low-communication
//   training of language models", 2023, where they are 0.9 and 0.7): in the long run as far as the average does, so the
//   learning rate of synchronous steps is right. Each rank's optimizer keeps its own state, until adopt().
// - "async": each rank, or each of some that only serve, owns a chunk of every bucket, and keeps the optimizer's state
//   of it. Ranks push the gradients of their parts to the owners, and pull weights from them, without waiting for each
//   other as long as none is more than `staleness` steps ahead (Ho et al., "More effective distributed ML via a stale
//   synchronous parallel parameter server", NIPS 2013). Within a round, ranks pull weights that are predicted two steps
//   ahead (LookAhead). A gradient of weights that are N > 3 steps old is divided by N - 2 (Zhang et al.,
//   "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016). With staleness 0, rounds counted in steps,
//   and no ranks that only serve, the bits are those of synchronous steps that sum in a ring. If ranks compute on GPUs,
//   owners keep all of this in the host's memory and update there, so the bits are others. Gradients of a part that
//   overflow in 16 bits count as zeros.
// All references must outlive the strategy. REQUIRES for sharded: the weights are in the all-reduce's common memory;
// for async: the optimizer does not need whole parameters. Throws Error if it cannot be used with this all-reduce.
std::unique_ptr<Strategy> make_strategy(const std::string& name, Model& model, AllReduce& all_reduce,
                                        Optimizer& optimizer, const RoundOptions& round);

// What a rank's optimizer keeps with a strategy: to be given to its constructor.
Optimizer::Keeps kept_by(const std::string& strategy);

// When to use which strategy.
struct StrategyUse {
  std::string name, when;
};
const std::vector<StrategyUse>& strategy_uses();

// The strategies and the outer optimizers above.
std::vector<std::string> strategy_names();
const std::vector<std::string>& outer_names();

// For make_strategy().
std::unique_ptr<Strategy> make_synchronous_strategy(Optimizer& optimizer);
std::unique_ptr<Strategy> make_sharded_strategy(Model& model, AllReduce& all_reduce, Optimizer& optimizer);
std::unique_ptr<Strategy> make_local_strategy(Model& model, AllReduce& all_reduce, Optimizer& optimizer,
                                              const RoundOptions& options);
std::unique_ptr<Strategy> make_async_strategy(Model& model, AllReduce& all_reduce, Optimizer& optimizer,
                                              const RoundOptions& options);

}  // namespace annulus
