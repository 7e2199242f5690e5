#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "src/step/gradient_exchange.h"
#include "src/step/step_clock.h"
#include "src/step/step_tools.h"
#include "src/step/update_share.h"

namespace annulus {

// Waits for a step's buckets and updates the weights. A bucket is updated as soon as it has been all-reduced, unless it
// is held back until all have been: because norms or overflows of all gradients are needed first, because ranks have
// the weights in common, or because the bucket holds a table that two layers share.
//
// Late updates. If all updates wait for all gradients, backward has ended, and they cannot run beside it. On a
// GPU they then run beside the next forward, which begins when the lowest layers' buckets have been updated, and waits
// for the others at a single place (late_buckets()):
//
//    lane     ... layers of the last bucket | judge it, clip | update last buckets | next forward: lower | upper layers
//    beside   ... judge other buckets                                              | update other buckets |
class Updater {
 public:
  // `table`: see tied_table(). `reduced`: called when a bucket has been waited for. All references must
  // outlive the updater.
  Updater(const StepTools& tools, GradientBuckets& buckets, UpdateShare& share, GradientExchange& exchange,
          StepClock& clock, const Range& table, float clip_norm, std::function<void(std::size_t bucket)> reduced);

  // To be called when the buckets were cut. Throws Error if the first update needs all gradients but some buckets are
  // deferred.
  void plan(const BucketOptions& options);

  // Waits for all buckets of a step but the first and the deferred ones, and updates them. REQUIRES: the first bucket
  // has been waited for. Deferred and late buckets, and weights that are being gathered, are left pending.
  void update();
  // Instead of update(): waits for all buckets of a step that changes nothing.
  void discard();
  // Completes pending buckets that end beyond this position in the arena, from which on forward needs the parameters.
  void finish_from(std::size_t parameters);
  bool between_steps() const { return !updating_ && pending_.size() == 0; }

 private:
  // Something that must be done with all gradients before the first update, and the option that needs it.
  struct Preparation {
    std::string_view option;
    std::function<void()> prepare;
  };

  void add_preparations(float clip_norm);
  void judge(std::size_t bucket);
  void judge_rest();
  void prepare();
  void update(std::size_t bucket);
  void update_late();
  void conclude();
  bool is_late(std::size_t bucket) const { return late_.begin <= bucket && bucket < late_.end; }
  bool holds_table(std::size_t bucket) const {
    return buckets_.range(bucket).begin < table_.end && table_.begin < buckets_.range(bucket).end;
  }
  void update_held_back();
  void wait_for(std::size_t bucket);
  void finish(std::size_t bucket);
  void send_weights();
  void await_weights(std::size_t bucket);
  void sum_norms(DeviceView values);
  void await(AllReduce& all_reduce, AllReduce::Ticket ticket);

  const StepTools& tools_;
  Device& device_;
  GradientBuckets& buckets_;
  UpdateShare& share_;
  GradientExchange& exchange_;
  StepClock& clock_;
  const Range table_;
  const bool ends_late_;
  const std::function<void(std::size_t)> reduced_;
  std::vector<Preparation> preparations_;  // none if buckets are updated one by one
  std::vector<bool> held_back_;            // of each bucket
  Range late_;                             // buckets
  Mark early_updated_;                     // all gradients are prepared, and the buckets that are not late updated
  Range pending_;                          // buckets that are deferred, late, or whose weights are being sent
  bool updating_ = false;                  // some parameters belong to the next step
};

// Whether updates need all gradients and run beside the next forward.
bool ends_late(const StepTools& tools, const UpdateShare& share, float clip_norm);

}  // namespace annulus
