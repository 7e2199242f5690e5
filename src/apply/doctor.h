#pragma once

#include "collectives/world/world.h"

namespace annulus {

// `annulus doctor`: what this program was built with and runs on, which devices, all-reduces and links it can use
// here, and why not the others. Collective; the root prints.
void doctor(const World& world);

}  // namespace annulus
