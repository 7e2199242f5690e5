#pragma once

#include "collectives/world/world.h"

namespace annulus {

// Returns the offset from this rank's clock to rank 0's: now_seconds() on this rank plus the offset is rank 0's
// now_seconds() at the same moment, with an error of at most half the shortest round trip seen (some microseconds on a
// node). Collective. Estimated as in NTP: among many exchanges with rank 0, the shortest round trip is used (Mills, RFC
// 5905). A node's ranks share a clock, so a single rank measures for all; on rank 0's node the offset is 0, however
// busy the machine is.
double clock_offset_to_root(const World& world);

// Returns the measured offset on ranks with `asks`, which must be false on rank 0, and 0 elsewhere. Collective.
double measured_clock_offset(const World& world, bool asks);

}  // namespace annulus
