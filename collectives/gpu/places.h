#pragma once

#include <string>

#include "collectives/world/world.h"

namespace annulus {

// Two ranks whose current GPU is the same, in words: "ranks 0 and 1 share GPU 0000:18:00.0 of host a". Empty where
// every rank has one of its own. Collective; the same on every rank.
std::string shared_gpu(const World& world);

}  // namespace annulus
