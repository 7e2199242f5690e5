#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "collectives/world/world.h"
#include "src/data/data_options.h"

namespace annulus {

struct BenchInputOptions {
  DataOptions data;
  std::string split = "train";
  std::size_t batch = 64;  // per rank
  double seconds = 5;
  std::uint64_t seed = 1;
  std::filesystem::path json;
  bool overwrite = false;
};

// Reads batches as training does, and does nothing with them, for a while: images/s, also for each processor that is
// kept busy by it, where the time goes, and of images that are stored as they are needed, how near this comes to
// copying memory. Every rank reads its share. Collective; prints, and writes JSON if asked to.
void bench_input(const World& world, const BenchInputOptions& options);

}  // namespace annulus
