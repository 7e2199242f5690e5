#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/relaxed.h"

namespace annulus {

// What the main thread is doing right now, for a watchdog (watchdog.h); the all-reduce has one of
// its own (collectives/world/all_reduce_progress.h). Written where things happen and read by another thread; of a rank
// that stands still, all that is seen is of the same moment.
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
    waiting_for_bucket,
    optimizer,
    evaluation,
    checkpoint,
    meeting,
    ending,
    unwatched  // of commands that do not report what they are doing
  };

  struct Snapshot {
    std::uint64_t moves = 0;  // grows with every call below
    std::uint64_t step = 0;   // the first is 1
    Phase phase = Phase::starting_mpi;
    std::size_t bucket = 0;   // in waiting_for_bucket and optimizer; the first is 0
    std::size_t buckets = 0;  // a step
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
  void tick() { ++moves_; }  // something within a long phase is done

  // By any thread.
  Snapshot look() const { return {moves_, step_, phase_, bucket_, buckets_}; }

 private:
  Relaxed<std::uint64_t> moves_, step_;
  Relaxed<Phase> phase_{Phase::starting_mpi};
  Relaxed<std::size_t> bucket_, buckets_;
};

// Whether a rank in this phase may wait for ranks that are still busy with something else.
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
