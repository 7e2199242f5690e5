#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "collectives/all_reduce.h"
#include "collectives/world/world.h"
#include "kernels/device.h"
#include "src/job/open_device.h"

namespace annulus {

struct BenchAllReduceOptions {
  DeviceOptions device{};
  std::vector<std::size_t> sizes_bytes;
  std::vector<std::string> algorithms;  // names for make_all_reduce()
  std::string verb = "all-reduce";      // or reduce-scatter, all-gather, broadcast
  std::string wire = "fp32";
  double seconds = 1;            // for each row, roughly
  std::filesystem::path json{};  // empty: the table only
  std::string configuration{};   // all options above as TOML
  bool overwrite = false;
};

// Times all-reduces, or another verb, for arrays in every size with every algorithm. The algorithms take turns call by
// call, so that the machine's drifting speed affects all. Every rank rewrites its array before each call, untimed. A
// call takes as long as on the slowest rank, from a common start until that rank's result is complete.
//
// The root prints a table, with bandwidths as nccl-tests defines them (doc/PERFORMANCE.md there): algbw = the whole
// array's bytes / seconds; busbw = algbw * 2(N-1)/N for an all-reduce, (N-1)/N for a reduce-scatter or an all-gather,
// 1 for a broadcast: the minimum that each rank must send. An untimed call in every row is compared with the exact
// result; after the table and the JSON file, wrong elements are an Error. Collective.
void bench_all_reduce(const World& world, const BenchAllReduceOptions& options);

struct NamedAllReduce {
  std::string name;
  std::unique_ptr<AllReduce> all_reduce;
};

// Times these all-reduces; ignores options.algorithms.
void time_all_reduces(const World& world, Device& device, std::vector<NamedAllReduce> all_reduces,
                      const BenchAllReduceOptions& options);

}  // namespace annulus
