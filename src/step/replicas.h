#pragma once

#include <string>

#include "collectives/world/world.h"
#include "models/model.h"
#include "src/step/optimizer.h"

namespace annulus {

// Before parameters are kept or measured: compares a hash of them, of the optimizer's state and of their moving average
// over all ranks. Throws Error on every rank, with `when`, naming the ranks that differ from the others where they are
// not the same to the bit, or a parameter that is not finite (a NaN need not reach the loss: a ReLU takes it for zero).
// Collective.
void check_replicas(const World& world, Model& model, const Optimizer& optimizer, const std::string& when);

}  // namespace annulus
