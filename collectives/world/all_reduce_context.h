#pragma once

#include "collectives/world/all_reduce_progress.h"
#include "collectives/world/backoff.h"

namespace annulus {

// Shared by the parts of an all-reduce (its worker, algorithm and links): how they wait, and what a watchdog reads.
struct AllReduceContext {
  // See Backoff.
  explicit AllReduceContext(int polls, std::shared_ptr<const std::atomic<bool>> interruption = {})
      : backoff(polls, std::move(interruption)) {}

  Backoff backoff;
  AllReduceProgress progress;
};

}  // namespace annulus
