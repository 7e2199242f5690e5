#pragma once

#include "collectives/world/world.h"

namespace annulus {

// Finds the ranks on this node that share allowed_memory() with this rank, and sets memory_share() accordingly. Returns
// their number, including this rank. Collective.
int share_memory_of_node(const World& world);

}  // namespace annulus
