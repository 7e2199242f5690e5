#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "collectives/world/world.h"
#include "src/job/open_device.h"
#include "src/step/timeline.h"

namespace annulus {

struct BenchStepOptions {
  DeviceOptions device;
  TimelineOptions timeline{.first = 0};  // of the steps that are measured, which are warm
  std::filesystem::path from;  // a checkpoint whose weights and optimizer's state are measured; empty: fresh ones
  // With `from`, the checkpoint's if empty or 0.
  std::string model = "lenet";
  std::vector<std::size_t> image{28, 28, 1};
  std::size_t classes = 10;
  std::size_t batch = 64;                       // per rank
  std::vector<std::string> all_reduce{"auto"};  // compared with each other
  std::string wire = "fp32";
  BucketOptions buckets;
  bool tune_buckets = false;
  double seconds = 5;
  std::filesystem::path json;
  std::string configuration;  // all of the above as TOML
  bool overwrite = false;
};

// Times the training step that `annulus train` makes, all-reduce and optimizer included, on random images in memory.
// A step's time is that of the slowest rank. Several all-reduces take turns, some steps each, so that a machine that
// drifts drifts for all of them; where "none" is one of them, the others' compute time is compared with its. With a
// checkpoint, the network and the optimizer begin with its weights and states: training need not be as fast after
// thousands of steps as at its start. The root prints a table. Collective.
void bench_step(const World& world, const BenchStepOptions& options);

}  // namespace annulus
