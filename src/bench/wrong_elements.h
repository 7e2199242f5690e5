#pragma once

#include <cstddef>
#include <string>

#include "collectives/all_reduce.h"
#include "collectives/world/world.h"
#include "kernels/device.h"

namespace annulus {

enum class MeasuredVerb { all_reduce, reduce_scatter, all_gather, broadcast };

struct WrongElements {
  std::size_t count = 0;   // on all ranks together
  std::string first = "";  // describes this rank's first; empty if this rank has none
};

// Returns the verb to enqueue; for a broadcast any will do (broadcast.h).
Verb verb_of(MeasuredVerb measured);

// Runs the operation once on small integers, which are added without rounding in any order, and compares every
// resulting element with the exact value. REQUIRES: `array`, of float32, is in allocate()'s memory. Collective.
WrongElements wrong_elements(const World& world, Device& device, AllReduce& all_reduce, MeasuredVerb measured,
                             DeviceView array);

}  // namespace annulus
