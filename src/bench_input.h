#pragma once

#include "collectives/world.h"
#include "src/options.h"

namespace annulus {

// Reads batches as training does, and does nothing with them, for a while: images/s, also for each processor that is
// kept busy by it, where the time goes, and of images that are stored as they are needed, how near this comes to
// copying memory. Every rank reads its share. Collective; prints, and writes JSON if asked to.
void bench_input(const World& world, const BenchInputOptions& options);

}  // namespace annulus
