#pragma once

#include "collectives/world.h"
#include "src/options.h"

namespace annulus {

// Times the training step that `annulus train` makes, all-reduce and optimizer included, on random images in memory.
// A step's time is that of the slowest rank. Several all-reduces take turns, some steps each, so that a machine that
// drifts drifts for all of them; where "none" is one of them, the others' compute time is compared with its. With a
// checkpoint, the network and the optimizer begin with its weights and states: training need not be as fast after
// thousands of steps as at its start. The root prints a table. Collective.
void bench_step(const World& world, const BenchStepOptions& options);

}  // namespace annulus
