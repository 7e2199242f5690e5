#pragma once

#include <cstdint>
#include <string>

#include "collectives/world/world.h"
#include "models/network/model.h"
#include "src/step/optimizer.h"

namespace annulus {

// Returns a checksum of the parameters, of the optimizer's state unless ranks keep different parts of it, and of the
// moving average.
std::uint64_t checksum(Model& model, const Optimizer& optimizer);

// Checks the replicas before parameters are saved or evaluated: compares their checksums over all ranks. Throws Error
// on every rank, with `when`, if they are not bit-identical, naming the ranks that differ from the others, or if a
// parameter is not finite, naming it (a NaN need not reach the loss: a vendor's ReLU may take it for zero). Collective.
void check_replicas(const World& world, Model& model, const Optimizer& optimizer, const std::string& when);

}  // namespace annulus
