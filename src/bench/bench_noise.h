#pragma once

#include <filesystem>
#include <string>

#include "collectives/world/world.h"

namespace annulus {

struct BenchNoiseOptions {
  double step_ms = 4;  // of computing, where nothing disturbs it
  double seconds = 3;  // for each row
  int threads = 0;     // of each rank; 0: as many as it is bound to
  std::filesystem::path json;
  std::string configuration;  // all of the above as TOML
  bool overwrite = false;
};

// Times steps of the same arithmetic on every rank, which touches no memory: each rank for itself, and, in turns with
// that, ranks that wait for each other after every step, as training's do. What the latter lose, but for the barrier's
// microseconds, is the machine's doing, its system's and its other users', and any program loses as much whose ranks go
// in step (Petrini, Kerbyson and Pakin: "The Case of the Missing Supercomputer Performance", SC 2003).
// Names the slowest rank. Collective; the root prints, and writes JSON if asked to.
void bench_noise(const World& world, const BenchNoiseOptions& options);

}  // namespace annulus
