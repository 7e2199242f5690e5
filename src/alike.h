#pragma once

#include <string>

#include "collectives/world.h"
#include "models/model.h"
#include "src/checkpoint.h"
#include "src/data/dataset.h"
#include "src/options.h"

namespace annulus {

// What all ranks must have alike (agreement.h). All are collective and throw Error on every rank, naming the first
// difference and who has it.

// The program's version, the command, and how this thread treats subnormal numbers. To be called before the ranks do
// anything else together.
void check_same_command(const World& world, const std::string& command);

// The options (but for paths and threads, which belong to a machine) and the data. To be called before anything on
// which a difference would hang or corrupt.
void check_alike(const World& world, const TrainOptions& options, const Dataset& training, const Dataset& test);
void check_alike(const World& world, const EvaluateOptions& options, const Dataset& dataset,
                 const Checkpoint& checkpoint);
void check_alike(const World& world, const PredictOptions& options, const Checkpoint& checkpoint,
                 std::span<const Samples* const> images);
void check_alike(const World& world, const BenchStepOptions& options, const Checkpoint* from);  // null: none
void check_alike(const World& world, const std::string& configuration);  // a command's whole one, as TOML

// The network, and how its parameters lie in memory, which is also how gradients are cut into buckets. To be called
// before the first sum.
void check_same_network(const World& world, const Model& model);

}  // namespace annulus
