#pragma once

#include <string>

#include "collectives/world/world.h"
#include "models/network/model.h"
#include "src/job/agreement.h"

namespace annulus {

// The start-up contract: everything that must be the same on all ranks. The checks are collective and throw Error on
// every rank, naming the first difference and the ranks that have it. Each command adds further fields (agreement.h).

// Checks the program's version, the command, and the treatment of subnormal numbers. Call before any other
// communication between the ranks.
void check_same_command(const World& world, const std::string& command);

// Adds a field for every option in `toml`, a command's whole configuration, except paths and threads, which are
// specific to a machine.
void add_configuration(Agreement& agreement, const std::string& toml);

// Checks the options alone. Call before anything that would hang or corrupt data if they differed.
void check_configuration(const World& world, const std::string& toml);

// Checks the network and the parameters' memory layout, which also determines how gradients are cut into buckets. Call
// before the first all-reduce.
void check_same_network(const World& world, const Model& model);

}  // namespace annulus
