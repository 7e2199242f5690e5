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

// Reads batches as training does for the given time and discards them. Reports images/s, images/s per busy processor,
// what the threads spend time on, and, for images stored as the network gets them, the speed relative to memcpy. Every
// rank reads a share. Collective; prints, and writes JSON if requested.
void bench_input(const World& world, const BenchInputOptions& options);

}  // namespace annulus
