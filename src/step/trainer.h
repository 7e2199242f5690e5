#pragma once

#include <algorithm>

#include "collectives/all_reduce.h"
#include "collectives/gradient_buckets.h"
#include "kernels/base/split.h"
#include "kernels/base/trace.h"
#include "models/model.h"
#include "src/data/loader.h"
#include "src/job/activity.h"
#include "src/step/ledger.h"
#include "src/step/optimizer.h"

namespace annulus {

// For Model: the gradients where the all-reduce has the least work with them.
Parameters::Allocate allocate_in(AllReduce& all_reduce);

// What the ranks ask for at a step's end: a rank passes 1 or 0, and the sums, which all have, tell whether one did.
struct ControlFlags {
  float stop = 0, evaluate = 0, checkpoint = 0;

  bool operator==(const ControlFlags&) const = default;
};

// What one step found, over the whole global batch, the same on every rank; where the all-reduce does not sum, only
// this rank's share of it.
struct StepMetrics {
  double loss = 0;      // mean
  double accuracy = 0;  // of the forward pass, before the update
  ControlFlags votes;   // sums of what the ranks passed to step()
};

// How a step is made.
struct StepOptions {
  // A rank's share of the batch is computed in so many parts, as even as it goes, and in fewer where it has fewer
  // samples. The step is the same but for rounding and for batch norm, whose statistics are those of a part; the memory
  // is that of a part.
  std::size_t parts = 1;
  float clip_norm = 0;  // see Update::clip(); 0: gradients are taken as they are

  std::size_t parts_of(std::size_t share) const { return std::min(parts, share); }
  Range part(std::size_t share, std::size_t number) const { return split(share, parts_of(share), number); }
};

// The synchronous data-parallel training step: every rank's gradients of its share of the batch, summed while they
// are still being computed, and the same update on every rank. All references must outlive the trainer.
class Trainer {
 public:
  // `activity` is told what the step is doing. `lane`: what each step does becomes spans of it; null for none.
  // Throws Error if a thread that computes keeps subnormal numbers (kernels/base/subnormals.h).
  Trainer(Model& model, AllReduce& all_reduce, Optimizer& optimizer, Ledger& ledger, const BucketOptions& buckets,
          Activity& activity, TraceLane* lane = nullptr, const StepOptions& options = {});

  // `batch`: this rank's share, possibly empty. `votes` are summed over the ranks and acted on by the caller: what all
  // ranks must agree on goes along with the gradients. Throws Error where the loss is not finite, before any
  // parameter has changed. `begun`: where the step began on the device's lane, for the ledger.
  //
  // On a GPU the step may still be under way when this returns: the loss is known early in backward, and what is left
  // of the step has been put on the lane. The books of a step are closed in the next one.
  StepMetrics step(const Batch& batch, const ControlFlags& votes, const Mark& begun);

  // Of deferred buckets (see GradientBuckets) step() leaves the sums under way and the parameters as they were, and the
  // next step goes on with them. This ends that, and waits for the device, for whoever wants to see the parameters or
  // to close the books.
  void finish();

  // What of a step is tried with other buckets: computing and summing, without the update. Changes gradients only.
  // Returns the seconds that it took.
  double rehearse(const Batch& batch);

  void cut_buckets(const BucketOptions& options);                          // the same on every rank, after finish()
  const BucketOptions& bucket_options() const { return bucket_options_; }  // with their size in bytes
  const GradientBuckets& buckets() const { return buckets_; }
  bool may_defer() const { return !updates_together(); }
  bool sums() const { return all_reduce_.sums(); }  // see AllReduce

 private:
  // Places in the lane from which a step's books are made, once the work there is done.
  struct StepTimestamps {
    bool open = false;
    Mark begun, loaded, computed, ended;
    struct Part {
      Mark begin, end;
    };
    std::vector<Part> finishing;  // of deferred buckets and of sums within a pass: no computing
    std::vector<Part> updates;
    std::vector<GradientBuckets::Times> waits;
    std::size_t spans = 0;  // of the timeline's lane, when the step ended
  };

  void load(const Batch& batch, std::size_t part);
  void compute(const Batch& batch, const ControlFlags& votes);
  void send_nothing(const ControlFlags& votes);
  Network& forward(const Batch& batch, std::size_t part);
  void accumulate(Network& network, float sample_weight);
  void backward(Network& network, float sample_weight, const ControlFlags& votes, bool accumulated);
  void send(std::size_t gradients);
  void begin_backward(const ControlFlags& votes);
  void sum_within_pass(DeviceView values);
  void finish_undeferred();
  void finish_from(std::size_t parameters);  // deferred buckets that reach beyond this place in the arena
  void finish(std::size_t bucket);
  void wait(std::size_t bucket);
  void update(std::size_t bucket);
  void update_together();         // all buckets, with what must be known of all before
  bool updates_together() const;  // rather than each bucket when its sum is there
  StepMetrics read_metrics() const;
  void settle(StepTimestamps& books);
  double seconds(const StepTimestamps::Part& part) { return device_.seconds(part.end) - device_.seconds(part.begin); }

  Model& model_;
  Device& device_;
  AllReduce& all_reduce_;
  Optimizer& optimizer_;
  Ledger& ledger_;
  TraceLane* const lane_;
  const StepOptions options_;
  Activity& activity_;
  Buffer accumulated_;         // gradients of a step's earlier parts; none where steps have one part
  std::size_t not_added_ = 0;  // they are still to be added to the last part's from here on, in bytes
  BucketOptions bucket_options_;
  GradientBuckets buckets_;
  std::size_t pending_ = 0;                      // deferred buckets that are not finished: 1 to this one
  bool rehearsing_ = false;                      // nothing is updated or booked
  StepTimestamps timestamps_, last_timestamps_;  // of this step, and of the one before
};

}  // namespace annulus
