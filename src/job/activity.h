#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/relaxed.h"

namespace annulus {

// The main thread's current activity, for a watchdog (watchdog.h); the all-reduce reports separately
// (collectives/world/all_reduce_progress.h). Written by the main thread and read by another. If the rank is stuck, all
// fields are from the same moment.
class Activity {
 public:
  enum class Phase {
    starting_mpi,
    opening,
    comparing,
    connecting,
    planning,
    resuming,
    tuning,
    beginning_step,
    input,
    forward,
    backward,
    waiting_within_pass,
    waiting_for_stage,
    waiting_for_steps,
    waiting_for_bucket,
    optimizer,
    evaluation,
    checkpoint,
    between_steps,  // waiting for ranks that have done the same step
    meeting,
    recovering,
    ending,
    unwatched  // in commands that do not record their activity
  };

  struct Snapshot {
    std::uint64_t moves = 0;  // grows with every call below
    std::uint64_t step = 0;   // the first is 1
    Phase phase = Phase::starting_mpi;
    std::size_t bucket = 0;   // in waiting_for_bucket and optimizer; the first is 0
    std::size_t buckets = 0;  // per step
  };

  // By the main thread.
  void plan(std::size_t buckets) { buckets_ = buckets; }
  void begin_step(std::uint64_t step) {
    step_ = step;
    enter(Phase::beginning_step);
  }
  void enter(Phase phase, std::size_t bucket = 0) {
    phase_ = phase;
    bucket_ = bucket;
    tick();
  }
  void tick() { ++moves_; }  // progress within a long phase

  // By any thread.
  Snapshot snapshot() const { return {moves_, step_, phase_, bucket_, buckets_}; }

 private:
  Relaxed<std::uint64_t> moves_, step_;
  Relaxed<Phase> phase_{Phase::starting_mpi};
  Relaxed<std::size_t> bucket_, buckets_;
};

// Returns whether a rank in this phase may be waiting for ranks that are still busy with something else.
constexpr bool waits_for_others(Activity::Phase phase) {
  using enum Activity::Phase;
  switch (phase) {
    case starting_mpi:
    case opening:
    case comparing:
    case connecting:
    case resuming:
    case tuning:
    case meeting:
    case ending:
      return true;
    default:
      return false;
  }
}

}  // namespace annulus
