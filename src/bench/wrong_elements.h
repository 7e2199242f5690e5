#pragma once

#include <cstddef>
#include <string>

#include "collectives/all_reduce.h"
#include "collectives/world/world.h"
#include "kernels/device.h"

namespace annulus {

struct WrongElements {
  std::size_t count = 0;   // on all ranks together
  std::string first = "";  // describes this rank's first; empty if this rank has none
};

// Runs the operation once on small integers, which are added without rounding in any order, and compares every
// resulting element with the exact value. REQUIRES: `array`, of float32, is in allocate()'s memory. Collective.
WrongElements wrong_elements(const World& world, Device& device, AllReduce& all_reduce, Verb verb, DeviceView array);

}  // namespace annulus
