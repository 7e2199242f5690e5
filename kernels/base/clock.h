#pragma once

#include <chrono>

namespace annulus {

// Seconds on this machine's steady clock. Only differences are meaningful; to compare times on different ranks, see
// collectives/world/aligned_clock.h.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace annulus
