#pragma once

#include "collectives/world.h"

namespace annulus {

// now_seconds() of this rank plus the returned offset is rank 0's now_seconds() at the same moment, up to half of
// the shortest round trip that was seen (some microseconds on a node). Collective. Estimated as NTP does: of many
// exchanges with rank 0, the one with the shortest round trip tells (Mills, RFC 5905).
double clock_offset_to_root(const World& world);

}  // namespace annulus
