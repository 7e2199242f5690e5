#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/world/world.h"
#include "kernels/base/array_hash.h"
#include "src/step/replicas.h"
#include "src/step/shard_check.h"
#include "src/step/state_copy.h"
#include "src/step/step.h"

namespace annulus {

// Compares between ranks, bit by bit, what a synchronous step must make the same on all of them (train --verify):
//
//   the sum of each bucket           in each step
//   weights, optimizer states and    a part of 1/kParts in each step: a difference lasts, because all ranks make the
//   their moving average             same updates, so it is found within kParts steps
//   copies of the state              when they are made
//   gradients of some shards         see ShardCheck
//
// Each rank's device hashes these, and the ranks compare one hash of all hashes at the end of a step, for which a GPU's
// host waits. Only if that differs, they exchange all hashes, and throw ReplicasDiffer.
//
// A flip may be in values that decide what a rank does next, such as the loss or the control flags. So ranks may reach
// different comparisons at the same time, and all comparisons exchange the same messages.
class Verifier {
 public:
  static constexpr std::size_t kParts = 16;

  // Hooks into the step. All references must outlive this, and this the step's last run. REQUIRES: all ranks in
  // `world` update all weights. `shards`: some are computed twice; 0: there are none.
  Verifier(const World& world, Model& model, const Optimizer& optimizer, Step& step, Activity& activity,
           std::size_t shards);

  // Throws ReplicasDiffer if the ranks have different copies. Collective.
  void compare(const StateCopy& copy);
  // Returns the last step whose state passed all checks.
  std::uint64_t sound_until() const { return shard_check_ ? shard_check_->sound_until() : UINT64_MAX; }

  // To be called on all ranks after an exception, before they continue.
  void forget();

 private:
  enum Slot : std::size_t { copied, weights, average, states };

  std::size_t first_bucket() const { return states + optimizer_.states(); }
  void expect_slots();
  DeviceView sum_in(std::size_t slot) const;
  void add(std::size_t bucket, DeviceView sum);
  void end_step();
  void explain_divergence();
  void compare();
  void explain();

  const World& world_;
  Model& model_;
  const Optimizer& optimizer_;
  const Step& step_;
  Activity& activity_;
  Device& device_;
  Buffer sums_;                    // on the device, by Slot, then by bucket; without `copied`
  std::vector<ArrayHash> hashes_;  // the same, with `copied`
  std::uint64_t copied_ = 0;
  Mark zeroed_;  // sums_
  std::optional<ShardCheck> shard_check_;
};

}  // namespace annulus
