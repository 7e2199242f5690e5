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
  std::string configuration{};   // all of the above as TOML
  bool overwrite = false;
};

// Times all-reduces of arrays of every size with every algorithm. The algorithms take turns call by call, so that drift
// of the machine's speed affects all of them. Every rank rewrites its array before each call, untimed. The time of a
// call is that of the slowest rank, from a common start until its result is complete. The first result of every row is
// compared with the exact sum.
//
// The root prints a table, with bandwidths as nccl-tests defines them (doc/PERFORMANCE.md there):
// algbw = bytes / seconds, busbw = algbw * 2(N-1)/N, which is the minimum that each rank must send. Collective.
void bench_all_reduce(const World& world, const BenchAllReduceOptions& options);

}  // namespace annulus
