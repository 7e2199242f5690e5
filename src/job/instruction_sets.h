#pragma once

#include <string>

#include "collectives/world/world.h"

namespace annulus {

// Lets all ranks compute with the same instruction set: `wanted`, or, if that is "auto", the widest that every rank's
// processor has. Otherwise replicas would differ in their last bits, and parameters in their memory layout. Returns, on
// rank 0, a line for the user if the processors differ; else empty. Collective; call before the first use of oneDNN.
// Throws Error if a rank's processor lacks `wanted`.
std::string agree_on_instruction_set(const World& world, const std::string& wanted);

}  // namespace annulus
