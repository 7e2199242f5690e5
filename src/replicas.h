#pragma once

#include <string>

#include "collectives/world.h"
#include "models/model.h"
#include "src/optimizer.h"

namespace annulus {

// Compares a hash of the parameters and the optimizer's state over all ranks. Throws Error on every rank, naming the
// ranks that differ from the others and `when`, where they are not the same to the bit. Collective.
void check_replicas(const World& world, Model& model, const Optimizer& optimizer, const std::string& when);

}  // namespace annulus
