#pragma once

#include <filesystem>
#include <string>

#include "collectives/world/world.h"

namespace annulus {

struct BenchNoiseOptions {
  double step_ms = 4;  // of undisturbed computing
  double seconds = 3;  // for each row
  int threads = 0;     // on each rank; 0: one per processor that it is bound to
  std::filesystem::path json;
  std::string configuration;  // all options above as TOML
  bool overwrite = false;
};

// Measures the machine's OS noise. Times steps with the same arithmetic in registers on every rank: each rank alone
// and, in turns with that, ranks that wait for each other after every step as in training. The time that the latter
// lose, apart from the barrier's microseconds, is caused by the machine, the system and other users; any
// bulk-synchronous program loses as much (Petrini, Kerbyson and Pakin: "The Case of the Missing Supercomputer
// Performance", SC 2003). Names the slowest rank. Collective; the root prints, and writes JSON if requested.
void bench_noise(const World& world, const BenchNoiseOptions& options);

}  // namespace annulus
