#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "src/energy/energy_counter.h"

namespace annulus {

// A kind of energy counter.
struct EnergySource {
  enum Covers { processors = 1, gpus = 2 };
  enum class Each { machine, gpu };

  std::string_view name;
  std::string_view of;    // counted parts, for the user
  int covers;             // Covers, or more of them
  Each each;              // has a counter
  double period_seconds;  // between readings while steps run
  EnergyCounter (*open)(const EnergyPlace&);
};

// In the order of preference among sources that count the same.
inline constexpr std::array<EnergySource, 3> kEnergySources{{
    {"pm_counters", "the nodes", EnergySource::processors | EnergySource::gpus, EnergySource::Each::machine, 0.01,
     open_pm_counters},
    {"NVML", "the GPUs", EnergySource::gpus, EnergySource::Each::gpu, 0.02, open_nvml},
    {"RAPL", "the processors", EnergySource::processors, EnergySource::Each::machine, 0.01, open_rapl},
}};

// A rank's counters, in the order of kEnergySources.
struct EnergyCounters {
  std::array<EnergyCounter, kEnergySources.size()> counters;  // null if there is none
  std::array<std::string, kEnergySources.size()> reasons;     // if there is none
};
EnergyCounters open_energy_counters(const EnergyPlace& place);

// The place of a rank: $ANNULUS_SYSFS, for tests, replaces /sys.
EnergyPlace energy_place(std::optional<int> gpu);

// Sources that together count the processors in use, each part once.
struct EnergyChoice {
  std::vector<std::size_t> sources;  // in kEnergySources
  std::string unknown;               // the reason, if they do not count the processors in use
};
// `counters`: readable on every rank. `on_gpu`: GPUs compute.
EnergyChoice choose_energy_sources(const EnergyCounters& counters, bool on_gpu);

// "the GPUs and the processors", or "NVML and RAPL".
std::string join_sources(const EnergyChoice& choice, std::string_view EnergySource::*text);

}  // namespace annulus
