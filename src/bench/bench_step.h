#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "src/train/train_options.h"

namespace annulus {

// The options of a run, whose step is timed, and those for the benchmark. `batch` is per rank also if there are shards.
// If `data` has files, the batch consists of their training samples instead of random samples.
struct BenchStepOptions : TrainOptions {
  BenchStepOptions() { timeline.first = 0; }  // measured steps are warm

  std::filesystem::path from;  // begin with this checkpoint's weights and optimizer state, if not empty
  // With `from` or `data`, an empty model, and empty or 0 here, mean the checkpoint's or the data's value.
  std::vector<std::size_t> image{28, 28, 1};  // 0 channels: the model's
  std::size_t classes = 10;
  std::size_t vocabulary = 0;                    // tokens to choose from, in windows of data.length; 0: the model's
  std::vector<std::string> all_reduces{"auto"};  // compared with each other, each with each strategy
  std::vector<std::string> strategies{"synchronous"};
  double seconds = 5;
  std::filesystem::path json;
};

// Times the training step of `annulus train`, including all-reduce and optimizer, on a single batch in memory, with
// random images or tokens, or read from data files. A step takes as long as on the slowest rank. Several all-reduces
// take turns, some steps each, so that the machine's drifting speed affects all; if "none" is among them, the compute
// time of each is compared with that of "none". With a checkpoint, the network and the optimizer begin with the
// checkpoint's weights and states, because training after thousands of steps may be slower than at the start. The root
// prints a table. Collective.
void bench_step(const World& world, const BenchStepOptions& options);

}  // namespace annulus
