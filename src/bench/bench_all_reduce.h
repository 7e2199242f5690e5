#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "src/job/open_device.h"

namespace annulus {

struct BenchAllReduceOptions {
  DeviceOptions device{};
  std::vector<std::size_t> sizes_bytes;
  std::vector<std::string> algorithms;  // names for make_all_reduce()
  std::string wire = "fp32";
  double seconds = 1;            // for each row, roughly
  std::filesystem::path json{};  // empty: the table only
  std::string configuration{};   // all options above as TOML
  bool overwrite = false;
};

// Times all-reduces of arrays in every size with every algorithm. The algorithms take turns call by call, so that the
// machine's drifting speed affects all. Every rank rewrites its array before each call, untimed. A call takes as long
// as on the slowest rank, from a common start until that rank's result is complete. The first result in every row is
// compared with the exact sum.
//
// The root prints a table, with bandwidths as nccl-tests defines them (doc/PERFORMANCE.md there): algbw = bytes /
// seconds, busbw = algbw * 2(N-1)/N, which is the minimum that each rank must send. Collective.
void bench_all_reduce(const World& world, const BenchAllReduceOptions& options);

}  // namespace annulus
