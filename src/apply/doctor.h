#pragma once

#include "collectives/world/world.h"

namespace annulus {

// Runs `annulus doctor`: prints versions and the machine, the usable devices, all-reduces and links, and why others are
// unavailable. Collective; the root prints.
void doctor(const World& world);

}  // namespace annulus
