#pragma once

#include "collectives/world.h"
#include "src/options.h"

namespace annulus {

// Times steps of the same arithmetic on every rank, which touches no memory: each rank for itself, and, in turns with
// that, ranks that wait for each other after every step, as training's do. What the latter lose, but for the barrier's
// microseconds, is the machine's doing, its system's and its other users', and any program loses as much whose ranks go
// in step (Petrini, Kerbyson and Pakin: "The Case of the Missing Supercomputer Performance", SC 2003).
// Names the slowest rank. Collective; the root prints, and writes JSON if asked to.
void bench_noise(const World& world, const BenchNoiseOptions& options);

}  // namespace annulus
