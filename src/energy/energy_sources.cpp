#include "src/energy/energy_sources.h"

#include <fmt/ranges.h>

#include <cstdlib>

#include "kernels/base/error.h"

namespace annulus {

EnergyCounters open_energy_counters(const EnergyPlace& place) {
  EnergyCounters found;
  for (std::size_t i = 0; i < kEnergySources.size(); ++i) try {
      EnergyCounter counter = kEnergySources[i].open(place);
      counter();
      found.counters[i] = std::move(counter);
    } catch (const Error& error) {
      found.reasons[i] = error.what();
    }
  return found;
}

EnergyPlace energy_place(std::optional<int> gpu) {
  const char* const sysfs = std::getenv("ANNULUS_SYSFS");
  return {sysfs != nullptr ? sysfs : "/sys", gpu};
}

EnergyChoice choose_energy_sources(const EnergyCounters& counters, bool on_gpu) {
  EnergyChoice choice;
  const int needed = on_gpu ? EnergySource::gpus : EnergySource::processors;
  int covered = 0;
  for (std::size_t i = 0; i < kEnergySources.size(); ++i) {
    const int covers = kEnergySources[i].covers;
    if ((covered & covers) != 0) continue;
    if (counters.counters[i]) {
      choice.sources.push_back(i);
      covered |= covers;
    } else if ((needed & covers) != 0) {
      choice.unknown = counters.reasons[i];
    }
  }
  if ((covered & needed) != 0) choice.unknown.clear();
  return choice;
}

std::string join_sources(const EnergyChoice& choice, std::string_view EnergySource::*text) {
  std::vector<std::string_view> texts;
  for (const std::size_t source : choice.sources) texts.push_back(kEnergySources[source].*text);
  return fmt::format("{}", fmt::join(texts, " and "));
}

}  // namespace annulus
