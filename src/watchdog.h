#pragma once

#include <fmt/format.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "collectives/sum_activity.h"
#include "collectives/world.h"
#include "src/activity.h"

namespace annulus {

// Looks on from a thread of its own, and calls `stalled` once, from there, when nothing has moved in either activity
// for so many seconds; 0: never. A rank that waits for the others at a meeting is given ten times as long: who is late
// there (a slower machine at the end of an evaluation, rank 0 at its checkpoint) has a watchdog of its own.
//
// A process that was itself frozen is not accused for that time: what counts is how often it was seen standing still.
class Watchdog {
 public:
  Watchdog(const Activity& activity, const SumActivity& sums, double seconds, std::function<void()> stalled);

 private:
  void watch(std::stop_token stop) const;
  bool sleep(std::stop_token stop) const;  // false where it is time to stop

  const Activity& activity_;
  const SumActivity& sums_;
  const double seconds_, interval_;
  const std::function<void()> stalled_;
  mutable std::mutex mutex_;
  mutable std::condition_variable_any stopped_;
  std::jthread thread_;  // last: it uses all of the above
};

// "step 5: waiting for bucket 2 of 7; all-reduce: bucket 2 of 7, all-gather, ring step 4 of 6, waiting for rank 0"
fmt::memory_buffer describe(const Activity::Snapshot& activity, const SumActivity::Snapshot& sums);

// What a watchdog of a rank does: says where the rank stands, leaves the other ranks a moment to say where they stand,
// and ends the job. Neither waits for locks that a stuck thread may hold, nor for MPI to answer.
[[noreturn]] void end_stalled_job(const World& world, const Activity& activity, const SumActivity& sums,
                                  double seconds);

}  // namespace annulus
