#pragma once

#include <string>

namespace annulus {

// The energy that all ranks' machines or GPUs take.
struct Energy {
  std::string source, of;                        // counters and counted parts; see EnergySource
  double watts = 0;                              // mean of steps
  double joules = 0;                             // in all, also between steps
  std::string unknown = "no step was measured";  // why the values are not known; else empty
};

}  // namespace annulus
