#pragma once

#include <string>

#include "collectives/world/world.h"
#include "models/model.h"
#include "src/job/agreement.h"

namespace annulus {

// The start-up contract: what all ranks must have in common. The checks are collective and throw Error on every rank,
// naming the first difference and the ranks that have it. Each command adds what it alone needs (agreement.h).

// The program's version, the command, and how this thread treats subnormal numbers. To be called before the ranks do
// anything else together.
void check_same_command(const World& world, const std::string& command);

// Adds a field for every option of `toml`, a command's whole configuration, except paths and threads, which belong to a
// machine.
void add_configuration(Agreement& agreement, const std::string& toml);

// The options alone. To be called before anything on which a difference would hang or corrupt.
void check_configuration(const World& world, const std::string& toml);

// The network, and how its parameters lie in memory, which is also how gradients are cut into buckets. To be called
// before the first sum.
void check_same_network(const World& world, const Model& model);

}  // namespace annulus
