#pragma once

#include "collectives/world/world.h"

namespace annulus {

// now_seconds() of this rank plus the returned offset is rank 0's now_seconds() at the same moment, up to half of
// the shortest round trip that was seen (some microseconds on a node). Collective. Estimated as NTP does: of many
// exchanges with rank 0, the one with the shortest round trip tells (Mills, RFC 5905). The ranks of a node read the
// same clock, so one of them asks for all; on rank 0's node the offset is 0, however busy the machine is.
double clock_offset_to_root(const World& world);

// What the exchanges say to a rank that asks, which rank 0 does not; 0 to the others. Collective.
double measured_clock_offset(const World& world, bool asks);

}  // namespace annulus
