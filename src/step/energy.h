#pragma once

#include <optional>

#include "collectives/world/world.h"
#include "kernels/device.h"

namespace annulus {

struct Energy {
  double steps = 0, all = 0;  // joules
};

// Measures the energy that all ranks' GPUs take, by NVML's counters; a GPU that ranks share counts once.
class EnergyMeter {
 public:
  EnergyMeter(const World& world, const Device& device);  // collective

  // Between these calls, steps take the energy.
  void begin_steps();
  void end_steps();

  // Returns the energy since the construction. Nothing on CPUs, or if a GPU has no counter. Collective; the same on
  // every rank.
  std::optional<Energy> total(const World& world) const;

 private:
  std::optional<double> joules() const;

  std::optional<int> gpu_;  // none on a CPU
  bool counts_ = false;
  std::optional<double> begun_;
  double steps_begun_ = 0, steps_ = 0;
};

}  // namespace annulus
