#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "collectives/world/world.h"
#include "src/data/data_options.h"
#include "src/job/open_device.h"
#include "src/step/strategy.h"
#include "src/step/timeline.h"

namespace annulus {

struct BenchStepOptions {
  DeviceOptions device;
  TimelineOptions timeline{.first = 0};  // for the measured steps, which are warm
  std::filesystem::path from;            // begin with this checkpoint's weights and optimizer state, if not empty
  DataOptions data;                      // a batch of its training samples instead of random samples, if it has files
  // With `from` or `data`, empty or 0 means the checkpoint's or the data's value.
  std::string model = "lenet";
  std::vector<std::size_t> image{28, 28, 1};
  std::size_t classes = 10;
  std::size_t vocabulary = 0;                   // tokens to choose from, in windows of data.length; 0: the model's
  std::size_t batch = 64;                       // per rank
  std::size_t shards = 0;                       // see TrainOptions
  std::vector<std::string> all_reduce{"auto"};  // compared with each other, each with each strategy
  std::vector<Strategy> strategies{Strategy::synchronous};
  std::string wire = "fp32";
  std::string recompute = "none";
  BucketOptions buckets;
  double seconds = 5;
  std::filesystem::path json;
  std::string configuration;  // all options above as TOML
  bool overwrite = false;
};

// Times the training step of `annulus train`, including all-reduce and optimizer, on a single batch in memory, with
// random images or tokens, or read from data files. A step takes as long as on the slowest rank. Several all-reduces
// take turns, some steps each, so that the machine's drifting speed affects all; if "none" is among them, the compute
// time of each is compared with that of "none". With a checkpoint, the network and the optimizer begin with the
// checkpoint's weights and states, because training after thousands of steps may be slower than at the start. The root
// prints a table. Collective.
void bench_step(const World& world, const BenchStepOptions& options);

}  // namespace annulus
