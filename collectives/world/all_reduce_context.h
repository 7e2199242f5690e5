#pragma once

#include "collectives/world/all_reduce_progress.h"
#include "collectives/world/backoff.h"
#include "kernels/base/trace.h"

namespace annulus {

// State shared by an all-reduce's worker, algorithm and links: the waiting policy, the progress that a watchdog reads,
// and the lane that records spans.
struct AllReduceContext {
  // See Backoff.
  explicit AllReduceContext(int polls, std::shared_ptr<const std::atomic<bool>> interruption = {})
      : backoff(polls, std::move(interruption)) {}

  Backoff backoff;
  AllReduceProgress progress;
  TraceLane* lane = nullptr;  // null: no recording
};

}  // namespace annulus
