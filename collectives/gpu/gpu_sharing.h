#pragma once

#include <string>

#include "collectives/world/world.h"

namespace annulus {

// Describes two ranks whose current GPU is the same: "ranks 0 and 1 share GPU 0000:18:00.0 of host a". Empty if every
// rank has a separate GPU. Collective; the same on every rank.
std::string shared_gpu(const World& world);

}  // namespace annulus
