#pragma once

#include <chrono>

namespace annulus {

// Seconds on this machine's steady clock. Only differences mean anything; see collectives/world/aligned_clock.h for
// comparing times of different ranks.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace annulus
