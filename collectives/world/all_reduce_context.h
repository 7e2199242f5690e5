#pragma once

#include "collectives/world/all_reduce_progress.h"
#include "collectives/world/backoff.h"

namespace annulus {

// Shared by the parts of an all-reduce (its worker, algorithm and links): how they wait, and what a watchdog reads.
struct AllReduceContext {
  // `polls`: see Backoff.
  explicit AllReduceContext(int polls) : backoff(polls) {}

  Backoff backoff;
  AllReduceProgress progress;
};

}  // namespace annulus
