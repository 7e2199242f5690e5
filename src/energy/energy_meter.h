#pragma once

#include <memory>
#include <vector>

#include "collectives/world/world.h"
#include "kernels/device.h"
#include "src/energy/energy.h"
#include "src/energy/sampled_counter.h"

namespace annulus {

// Measures energy by the counters that every rank can read. A machine or GPU that ranks share is counted once.
class EnergyMeter {
 public:
  EnergyMeter(const World& world, const Device& device);  // collective

  // Between these calls, steps run.
  void begin_steps();
  void end_steps();

  // Returns the energy since the construction. `unknown` is empty on every rank or on none. Collective.
  Energy total(const World& world) const;

 private:
  Energy chosen_;
  std::vector<std::unique_ptr<SampledCounter>> counters_;  // that this rank reads
};

}  // namespace annulus
