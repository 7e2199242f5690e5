#pragma once

#include <fmt/format.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "collectives/world/all_reduce_progress.h"
#include "src/job/activity.h"

namespace annulus {

constexpr double kStallSeconds = 60;  // the default for --stall-timeout

// The position of a process that had made no progress for `seconds`.
struct Stall {
  Activity::Snapshot activity;
  std::optional<AllReduceProgress::Snapshot> all_reduce;  // if there is one
  double seconds = 0;
};

// Watches this process from before MPI_Init until after MPI_Finalize, on a separate thread. Calls `stalled` once, from
// that thread, when neither the activity nor the all-reduce has made progress for `seconds` (0: never). Phases in which
// other ranks may be busy with something else get ten times as long: a rank that is late there (a slower machine at the
// end of an evaluation, rank 0 at a checkpoint) has a watchdog, too.
//
// Time in which the process was frozen does not count: a stall is a number of polls that saw no progress.
class Watchdog {
 public:
  // Watches an all-reduce too, as long as this object lives. A single all-reduce at a time.
  class Watched {
   public:
    Watched(Watchdog& watchdog, const AllReduceProgress& all_reduce) : watchdog_(watchdog) {
      watchdog_.watch(&all_reduce);
    }
    ~Watched() { watchdog_.watch(nullptr); }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    Watchdog& watchdog_;
  };

  Watchdog(double seconds, std::function<void(const Stall&)> stalled);

  Activity& activity() { return activity_; }  // the main thread's

 private:
  void watch(const AllReduceProgress* all_reduce);
  void run(std::stop_token stop);
  Stall snapshot();
  bool sleep(std::stop_token stop);  // false if it is time to stop

  const double seconds_;
  const std::function<void(const Stall&)> stalled_;
  Activity activity_;
  std::mutex mutex_;                               // held for moments only, never while waiting
  const AllReduceProgress* all_reduce_ = nullptr;  // guarded by mutex_
  std::condition_variable_any stopped_;
  std::jthread thread_;  // last, because it uses all members above
};

// Returns " in step 5: waiting for bucket 2 of 7; all-reduce: bucket 2 of 7, all-gather, ring step 4 of 6, waiting for
// rank 0", or before the first step ": comparing options and data".
fmt::memory_buffer describe(const Stall& stall);

// For a watchdog's `stalled`: reports this rank's position, leaves the other ranks a moment to do the same, and aborts
// the job; before MPI is initialized it ends this process, whereupon the launcher ends the job. `rank`: negative if
// unknown. Does not wait for a lock that a stuck thread may hold, nor for MPI to answer.
[[noreturn]] void end_stalled_job(int rank, const Stall& stall);

}  // namespace annulus
