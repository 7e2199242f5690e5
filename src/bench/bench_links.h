#pragma once

#include <filesystem>
#include <string>

#include "collectives/world/world.h"

namespace annulus {

struct BenchLinksOptions {
  std::size_t bytes = std::size_t{4} << 20;  // per message, to measure bandwidth
  double seconds = 0.1;                      // for each pair, roughly
  std::filesystem::path json{};              // empty: the tables only
  std::string configuration{};               // all options above as TOML
  bool overwrite = false;
};

// Times messages in host memory between every two ranks, pair by pair. The root prints two matrices, each
// with the slowest pair: latency, half the round trip with 8 bytes; bandwidth, `bytes` / half the round trip. Throws
// Error if there is a single rank. Collective.
void bench_links(const World& world, const BenchLinksOptions& options);

}  // namespace annulus
