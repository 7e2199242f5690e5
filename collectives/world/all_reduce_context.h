#pragma once

#include "collectives/world/all_reduce_progress.h"
#include "collectives/world/backoff.h"
#include "kernels/base/trace.h"

namespace annulus {

// Shared by the parts of an all-reduce (worker, algorithm and links): how they wait, what a watchdog reads, and
// where they record spans.
struct AllReduceContext {
  // See Backoff.
  explicit AllReduceContext(int polls, std::shared_ptr<const std::atomic<bool>> interruption = {})
      : backoff(polls, std::move(interruption)) {}

  Backoff backoff;
  AllReduceProgress progress;
  TraceLane* lane = nullptr;  // null: no recording
};

}  // namespace annulus
