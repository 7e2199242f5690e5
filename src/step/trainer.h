#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "collectives/all_reduce.h"
#include "collectives/gradient_buckets.h"
#include "collectives/pipeline_link.h"
#include "collectives/shard_tree.h"
#include "kernels/base/split.h"
#include "kernels/base/trace.h"
#include "models/model.h"
#include "src/data/loader.h"
#include "src/job/activity.h"
#include "src/step/embedding_exchange.h"
#include "src/step/gradient_noise.h"
#include "src/step/ledger.h"
#include "src/step/optimizer.h"
#include "src/step/pipeline_schedule.h"
#include "src/step/strategy.h"

namespace annulus {

std::string to_string(const BucketOptions& buckets);  // "1 MiB, 25 % deferred"

// For Model: allocates gradients in the all-reduce's memory, which needs the fewest copies.
Parameters::Allocate allocate_in(AllReduce& all_reduce);
// Likewise for the weights, as the strategy of this name needs them.
Parameters::Allocate allocate_weights(const std::string& strategy, AllReduce& all_reduce);

// Requests of the ranks at the end of a step: a rank passes 1 or 0, and every rank reads from the sums whether any rank
// made the request.
struct ControlFlags {
  float stop = 0, evaluate = 0, checkpoint = 0;
  float copy = 0;      // see Trainer::before_update()
  float skipped = 0;   // the rank has skipped bad samples
  float diverged = 0;  // set by the trainer: an update made a parameter that is not finite

  bool operator==(const ControlFlags&) const = default;
};

// The result of a step over the whole global batch, the same on every rank; if the all-reduce does not sum, over this
// rank's share only.
struct StepMetrics {
  double loss = 0;             // mean, this and the next from the forward pass, before the update
  double measure = 0;          // mean of LossSums::measure, see step_measure()
  std::size_t steps = 1;       // number of steps as which it counts, see Trainer
  ControlFlags control_flags;  // sums over the ranks' arguments of step(), also those of other stages
};

// Options of a step.
struct StepOptions {
  // The number of parts in which a rank's share of the batch is computed, as even as possible; fewer if it has fewer
  // samples. The step is the same except for rounding and for batch norm, whose statistics are those of a part; the
  // memory needed is that of a part.
  std::size_t parts = 1;
  // If there are shards (collectives/shard_tree.h; 0: there are none), the parts are those of this rank instead.
  std::size_t shards = 0, rank = 0, ranks = 1;
  float clip_norm = 0;           // see Update::clip(); 0: no clipping
  std::size_t global_batch = 0;  // the maximum of a step; only needed if an embedding is shared, or there are rounds
  // See make_strategy(). REQUIRES for all but synchronous: no shards; for local and async no deferring; for async no
  // clipping.
  std::string strategy = "synchronous";
  RoundOptions round{};
  // The other stages, if the model is a stage of a pipeline; null: it is whole. Then the parts are its micro-batches,
  // and `ranks` those with this stage. REQUIRES: no shards or deferring.
  PipelineLink* pipeline = nullptr;

  std::size_t stage() const { return pipeline == nullptr ? 0 : pipeline->stage(); }
  std::size_t stages() const { return pipeline == nullptr ? 1 : pipeline->stages(); }

  // At least one. `share`: this rank's number of samples.
  std::size_t parts_of(std::size_t share) const {
    if (round.batch > 0) return std::max<std::size_t>((share + round.batch - 1) / round.batch, 1);
    return shards > 0 ? split(shards, ranks, rank).size() : std::clamp<std::size_t>(share, 1, parts);
  }
  // Returns the slot of the network that computes a part, see Model::network().
  std::size_t slot(std::size_t share, std::size_t number) const {
    return number % parts_in_flight(stage(), stages(), parts_of(share));
  }
  // Returns the samples of a part as a range of the rank's share, possibly empty. `batch`: the step's global batch.
  Range part(std::size_t batch, std::size_t share, std::size_t number) const {
    if (round.batch > 0) return {std::min(number * round.batch, share), std::min((number + 1) * round.batch, share)};
    if (shards == 0) return split(share, parts_of(share), number);
    const std::size_t first = split(shards, ranks, rank).begin, begin = split(batch, shards, first).begin;
    const Range shard = split(batch, shards, first + number);
    return {shard.begin - begin, shard.end - begin};
  }
};

// The synchronous data-parallel training step: every rank computes the gradients of its share of the batch, which are
// all-reduced while backward is still running, and all ranks make the same update, together or each a part of it (see
// Strategy). All references must outlive the trainer.
//
// With the strategies local and async it is a round: every rank computes its share part by part, and updates weights of
// its own, or those that all ranks share, with each. Only the differences of its own weights are all-reduced, after the
// round. A round counts as the number of steps of the global batch that its samples would make.
class Trainer {
 public:
  // Records the step's phases in `activity` and its spans in `lane` (null: none). Throws Error if a compute thread does
  // not flush subnormal numbers (kernels/base/subnormals.h).
  Trainer(Model& model, AllReduce& all_reduce, Optimizer& optimizer, Ledger& ledger, const BucketOptions& buckets,
          Activity& activity, TraceLane* lane = nullptr, const StepOptions& options = {});

  // With a strategy of rounds, to be called before step(), as soon as the plan is known: with async this rank then
  // updates its part of the weights for the others, even if it still waits for its own samples. Does nothing if there
  // are no rounds.
  void begin_round(const StepPlan& round);

  // Runs a step. `batch`: this rank's share, possibly empty. `flags` are summed over the ranks together with the
  // gradients; the caller acts on them. Throws Error on every rank if the loss is not finite, before any parameter has
  // changed, or if an earlier update of any rank made a parameter that is not: a NaN need not reach the loss.
  // `begun`: when the step began on the device's lane, for the ledger.
  //
  // On a GPU a step that is no round may still be running when this returns: the loss is known early in backward, and
  // the rest of the step has been queued on the lane. Its times are booked during the next one.
  StepMetrics step(const Batch& batch, const ControlFlags& flags, const Mark& begun);

  // Completes the last step. step() returns while the all-reduces of deferred buckets (see GradientBuckets) are still
  // running and their parameters not yet updated, or while weights are being gathered (see Strategy); normally the next
  // step completes them. This function does so, and waits for the device; call it before reading the parameters or
  // closing the ledger. Collective.
  void finish();

  // The next step also takes the norms of this rank's gradients, for the gradient-noise scale. Does nothing if
  // the rows of a shared embedding's gradient are exchanged, because they are not in the arena, and in a round, whose
  // parts have the gradients of different weights.
  void measure_parts() {
    if ((table_.size() == 0 || options_.shards > 0) && !strategy_->has_rounds()) part_norms_.request();
  }
  PartNorms take_parts() { return part_norms_.take(); }  // REQUIRES: after finish()

  // Each step begins to copy the next one's batch to the device before it waits for all-reduces. `peek` returns the
  // batch, or null if it is not ready.
  void peek_next(std::function<const Batch*()> peek) { peek_next_ = std::move(peek); }

  // Calls `copy` in steps in which a rank requested it, when all ranks have completed the previous step and this one
  // has not changed any parameter yet.
  void before_update(std::function<void()> copy) { before_update_ = std::move(copy); }
  // Calls `visit` before the second and each further part of this rank's share of a round, with its number.
  void before_part(std::function<void(std::size_t number)> visit) { before_part_ = std::move(visit); }
  // Calls `regroup` in a round of async, if its last exchange, of the metrics, was interrupted. It returns whether all
  // ranks that are left have completed the round, and the all-reduce continues with these.
  void after_interruption(std::function<bool()> regroup) { regroup_ = std::move(regroup); }
  // Whether the parameters are those after a whole number of steps, also if a step was left by an exception.
  bool between_steps() const { return !updating_ && pending_.size() == 0; }
  // Continues after a step was left by an exception because ranks were lost. REQUIRES: the all-reduce continues, too.
  void continue_with(const StepOptions& options);

  const BucketOptions& bucket_options() const { return bucket_options_; }  // with their size in bytes
  const GradientBuckets& buckets() const { return buckets_; }
  bool reduces() const { return all_reduce_.info().reduces; }  // see AllReduceInfo
  Strategy& strategy() { return *strategy_; }
  // How long this rank took for its own part of the last step: until it had nothing left but to wait for the others.
  // REQUIRES: the device shares the host's memory, or the step was a round.
  double own_seconds() const { return own_seconds_; }

 private:
  // Marks in the lane from which times are booked, once the work there is done.
  struct Timestamps {
    struct Part {
      Mark begin, end;
    };
    // Of deferred buckets, waits within passes, transfers and updates of own weights: not booked as compute.
    std::vector<Part> finishing;
    std::vector<Part> updates;
    std::vector<Part> norms;       // waits for sums of norms within updates: not booked as optimizer
    std::vector<Part> neighbours;  // waits for other stages of a pipeline, or for other ranks within a round
    std::vector<Part> transfers;   // of weights and gradients within a round
    std::vector<GradientBuckets::Times> waits;
    std::size_t spans = 0;  // number in the timeline's lane
  };
  struct StepTimestamps : Timestamps {
    bool open = false;
    Mark begun, loaded, computed, ended;
    std::size_t steps = 1;                                 // as which it counts
    double finishing_seconds = 0, neighbours_seconds = 0;  // of the times booked so far
  };

  void allocate_kept();
  void link_stages();
  double sum_squares(double squares);
  void sum_over_stages(DeviceView value);
  void load(const Batch& batch, std::size_t part);
  void prefetch_next();
  Network& network(const Batch& batch, std::size_t part);
  void compute(const Batch& batch, const ControlFlags& flags);
  void compute_parts(const Batch& batch, const ControlFlags& flags);
  void compute_round(const Batch& batch, const ControlFlags& flags);
  void send_differences(const Batch& batch);
  bool sends_differences() const { return bool(strategy_->differences()); }
  // Number of buckets that are all-reduced: if a round sends no differences, only the one that holds the metrics.
  std::size_t sent_buckets() const { return strategy_->has_rounds() && !sends_differences() ? 1 : buckets_.size(); }
  static float weight_of(std::size_t samples, const Batch& batch);
  void wait_within_round(const std::function<void()>& wait);
  void work_within_round(Activity::Phase phase, std::vector<Timestamps::Part>& parts,
                         const std::function<void()>& work);
  std::size_t mean_over(const Batch& batch, std::size_t number) const;
  std::size_t steps_of(const Batch& batch) const;
  // Whether this stage of a pipeline shares an embedding with another one.
  bool shares_across_stages() const { return table_.size() > 0 && !embedding_; }
  // Whether an embedding's rows are exchanged; with shards or own weights each adds its own to the whole gradient.
  bool exchanges() const { return embedding_ && options_.shards == 0 && !strategy_->has_rounds(); }
  Range part(const Batch& batch, std::size_t number) const;
  std::span<const std::uint8_t> part_of(const Batch& batch, std::size_t number) const;
  void forward(const Batch& batch, std::size_t part);
  void backward(const Batch& batch, std::size_t part, const Network::Ready& ready);
  void backward_with_embedding(const Batch& batch, std::size_t part, const Network::Ready& ready);
  void keep(const Batch& batch, std::size_t part);
  void send_last(const Batch& batch, const ControlFlags& flags);
  std::size_t joins(const Batch& batch, std::size_t part) const;
  DeviceView written(DeviceView gradients) const;  // without the steering slot, which the network does not write
  void send(std::size_t gradients);
  void tick();
  void begin_backward(ControlFlags flags);
  template <class Wait>
  Timestamps::Part wait_for_ranks(const Wait& wait);  // for an all-reduce that is not a bucket's
  void plan_strategy();
  void sum_norms(DeviceView values);
  std::span<const std::int32_t> last_windows(const Batch& batch) const;
  void send_rows(const Batch& batch, AllReduce::Ticket tokens);
  void finish_undeferred();                  // REQUIRES: the first bucket has been waited for
  void finish_from(std::size_t parameters);  // pending buckets that end beyond this position in the arena
  void finish(std::size_t bucket);
  void wait(std::size_t bucket);
  void update(std::size_t bucket);
  bool updates_together() const;  // rather than each bucket when its all-reduce is done
  bool held_back(std::size_t bucket) const;
  void use_all_gradients();
  void send_weights();
  void await_weights(std::size_t bucket);
  using Metrics = std::array<float, 2>;  // loss and measure
  DeviceView exchanged() const;
  DeviceView metrics_slot(DeviceView arena) const;  // REQUIRES: there is one
  void send_metrics(const ControlFlags& flags);
  void wait_for_metrics(const Batch& batch, const ControlFlags& flags);
  StepMetrics read_metrics();
  void expect_finite(const StepMetrics& metrics) const;
  void exchange(Activity::Phase phase, const char* name, const std::function<void()>& wait);
  void record_times(StepTimestamps& timestamps);
  void book(Timestamps& timestamps, StepTimestamps& step);
  double seconds(const Timestamps::Part& part) { return device_.seconds(part.end) - device_.seconds(part.begin); }

  Model& model_;
  Device& device_;
  AllReduce& all_reduce_;
  Optimizer& optimizer_;
  Ledger& ledger_;
  TraceLane* const lane_;
  StepOptions options_;
  Activity& activity_;
  TreeOrder order_;  // of this rank's shards
  // A stack of gradients of a step's earlier parts or, with shards, of their subtrees; the lowest ones may be in the
  // all-reduce's memory.
  std::vector<DeviceView> kept_;
  std::vector<Buffer> kept_memory_;
  std::size_t kept_now_ = 0;                    // height of the stack
  std::size_t joins_ = 0;                       // of its upper ones that are added to the last part's
  std::optional<EmbeddingExchange> embedding_;  // none if no embedding is shared
  const Range table_;                           // the gradients of its table, in floats; empty if there is none
  AllReduce::Ticket rows_ = 0;                  // of its rows
  PartNormProbe part_norms_;
  std::size_t not_added_ = 0;  // offset in bytes from which they are not yet added to the last part's
  BucketOptions bucket_options_;
  std::unique_ptr<Strategy> strategy_;
  GradientBuckets buckets_;
  Range pending_;                   // buckets that are deferred, or whose weights are being sent, and not finished
  std::uint64_t before_round_ = 0;  // steps
  Buffer round_metrics_;  // means over a round so far, each part's with its weight; empty if there are no rounds
  std::vector<std::byte> slots_;  // with the metrics of a step
  bool computing_ = false;        // the passes of a step
  bool updating_ = false;         // some parameters are those of the next step
  double own_seconds_ = 0;        // see own_seconds()
  std::function<const Batch*()> peek_next_ = [] { return nullptr; };
  std::function<void()> before_update_ = [] {};
  std::function<void(std::size_t)> before_part_ = [](std::size_t) {};
  std::function<bool()> regroup_ = [] { return false; };
  StepTimestamps timestamps_, last_timestamps_;  // of this step, and of the one before
};

}  // namespace annulus
