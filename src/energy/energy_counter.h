#pragma once

#include <filesystem>
#include <functional>
#include <optional>

namespace annulus {

// A counter's value, and the time at which the counter reached it: on any clock, so only differences are meaningful.
struct EnergyReading {
  double joules = 0, seconds = 0;
};

// Reads a counter that only grows. Throws Error if it cannot be read.
using EnergyCounter = std::function<EnergyReading()>;

// Where a rank looks for counters.
struct EnergyPlace {
  std::filesystem::path sysfs;  // Linux's /sys
  std::optional<int> gpu;       // the rank's GPU on the node; none on a CPU
};

// Open the counters in the file of each name. Throw Error if there is none, or if it cannot be read.
EnergyCounter open_pm_counters(const EnergyPlace& place);
EnergyCounter open_nvml(const EnergyPlace& place);
EnergyCounter open_rapl(const EnergyPlace& place);

}  // namespace annulus
