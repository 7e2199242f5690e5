#pragma once

#include "collectives/world/all_reduce_progress.h"
#include "collectives/world/backoff.h"

namespace annulus {

// Shared by the parts of an all-reduce (its worker, algorithm and links): how they wait, and what a watchdog reads.
struct AllReduceContext {
  // `looks`: see Backoff.
  explicit AllReduceContext(int looks) : backoff(looks) {}

  Backoff backoff;
  AllReduceProgress progress;
};

}  // namespace annulus
