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
  std::vector<std::string> algorithms;  // as make_all_reduce names them
  std::string wire = "fp32";
  double seconds = 1;            // for each row, roughly
  std::filesystem::path json{};  // empty: the table only
  std::string configuration{};   // all of the above as TOML
  bool overwrite = false;
};

// Times sums of arrays of every size with every algorithm. All algorithms take turns call by call, so that a machine
// that drifts drifts for all of them. Every rank rewrites its array before each call, untimed. A call's time is the
// longest that any rank needed, from a common start until its sum was there. The first sum of every row is compared
// with the exact one.
//
// The root prints a table, with bandwidths as nccl-tests defines them (doc/PERFORMANCE.md there):
// algbw = bytes / seconds, busbw = algbw * 2(N-1)/N, which is what each rank must at least send. Collective.
void bench_all_reduce(const World& world, const BenchAllReduceOptions& options);

}  // namespace annulus
