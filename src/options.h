#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "src/faults.h"

namespace annulus {

// What each command can be asked for (src/cli.cpp gives these their names on the command line).

struct DeviceOptions {
  std::string device = "auto";
  std::string precision = "auto";  // bf16 on a GPU, fp32 on a CPU
  int threads = 0;                 // 0: as many as the affinity mask gives this rank
  std::filesystem::path tuning;    // file of measured convolution plans; empty: none
};

struct TimelineOptions {
  std::filesystem::path file;  // empty: none
  std::size_t steps = 20;      // to look at
};

struct TrainOptions {
  DeviceOptions device;
  TimelineOptions timeline;
  std::filesystem::path data;
  std::filesystem::path out;
  std::string model = "lenet";
  std::size_t batch = 64;        // per rank
  std::size_t global_batch = 0;  // over all ranks; 0: batch on each
  std::size_t epochs = 1;
  std::size_t max_steps = 0;  // 0: no limit
  std::string optimizer = "sgd";
  float rate = 0.05f;
  float momentum = 0.9f;
  float weight_decay = 0;
  bool nesterov = false;
  float label_smoothing = 0;
  std::uint64_t seed = 1;
  std::string all_reduce = "auto";
  std::string wire = "fp32";
  BucketOptions buckets;
  bool tune_buckets = false;
  std::size_t checkpoint_every = 0;  // steps; 0: at the end of every epoch
  bool resume = false;
  double stall_seconds = 60;  // 0: no watchdog
  std::vector<Fault> faults;  // for tests
  std::string configuration;  // all of the above as TOML
};

struct EvaluateOptions {
  DeviceOptions device;
  std::filesystem::path data;
  std::filesystem::path checkpoint;
  std::string split = "test";
  std::size_t batch = 64;
  std::filesystem::path json;
};

struct BenchStepOptions {
  DeviceOptions device;
  TimelineOptions timeline;
  std::string model = "lenet";
  std::size_t batch = 64;  // per rank
  std::vector<std::size_t> image{28, 28, 1};
  std::size_t classes = 10;
  std::vector<std::string> all_reduce{"auto"};  // compared with each other
  std::string wire = "fp32";
  BucketOptions buckets;
  bool tune_buckets = false;
  double seconds = 5;
  std::filesystem::path json;
  std::string configuration;  // all of the above as TOML
};

struct BenchAllReduceOptions {
  DeviceOptions device{};
  std::vector<std::size_t> sizes_bytes;
  std::vector<std::string> algorithms;  // as make_all_reduce names them
  std::string wire = "fp32";
  double seconds = 1;            // for each row, roughly
  std::filesystem::path json{};  // empty: the table only
  std::string configuration{};   // all of the above as TOML
};

}  // namespace annulus
