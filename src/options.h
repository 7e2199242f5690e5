#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "collectives/sum_model.h"
#include "src/data/data_options.h"
#include "src/faults.h"
#include "src/interval.h"
#include "src/schedule.h"

namespace annulus {

// What each command can be asked for (src/cli.cpp gives these their names on the command line).

struct DeviceOptions {
  std::string device = "auto";
  std::string precision = "auto";  // bf16 on a GPU, fp32 on a CPU
  int threads = 0;                 // 0: see choose_threads()
  std::filesystem::path tuning;    // file of measured convolution plans; empty: none
};

struct TimelineOptions {
  std::filesystem::path file{};  // empty: none
  std::size_t steps = 20;        // to look at
  std::size_t first = 5;         // that are not looked at before: memory is touched for the first time there
};

struct MetricsOptions {
  std::vector<std::string> formats{"jsonl"};  // see metrics_formats(); none: nothing is written
  std::size_t every = 50;                     // steps
};

struct TrainOptions {
  DeviceOptions device;
  TimelineOptions timeline;
  MetricsOptions metrics;
  DataOptions data;
  std::filesystem::path out;
  std::string model = "lenet";
  std::size_t batch = 64;        // per rank
  std::size_t global_batch = 0;  // over all ranks; 0: batch on each
  std::size_t accumulate = 1;    // parts that a rank's share of a step is computed in
  std::size_t epochs = 1;
  std::size_t max_steps = 0;  // 0: no limit
  std::string recipe;         // what was taken from it: "goyal (...): lr 0.1, ..."; empty: none
  ScheduleOptions schedule;
  std::string optimizer = "sgd";
  float momentum = 0.9f;
  float weight_decay = 0;
  bool nesterov = false;
  std::vector<float> betas{0.9f, 0.999f};
  float epsilon = 1e-8f;
  float trust = 0.001f;
  float clip_norm = 0;  // 0: gradients are not clipped
  double ema = 0;       // decay of the moving average of the weights; 0: none
  bool sync_batch_norm = false;
  float label_smoothing = 0;
  bool zero_init = false;
  std::uint64_t seed = 1;
  std::string all_reduce = "auto";
  std::string wire = "fp32";
  BucketOptions buckets;
  bool tune_buckets = false;
  Interval evaluate_every;           // and at the run's end
  std::size_t evaluation_steps = 0;  // only the first so many global batches; 0: all
  Interval checkpoint_every;         // and where it stops, and at the best evaluation
  std::size_t keep = 2;              // of the last checkpoints
  bool resume = false;
  std::vector<Fault> faults;  // for tests
  std::string configuration;  // all of the above as TOML
  bool overwrite = false;     // files that are there already, whatever they are
};

struct EvaluateOptions {
  DeviceOptions device;
  DataOptions data;
  std::filesystem::path checkpoint;  // a file, or the folder of a run
  std::string split = "test";
  std::string weights = "auto";  // ema, raw, or auto: the averaged ones where there are any
  std::size_t batch = 64;
  std::filesystem::path json;
  bool overwrite = false;
};

struct PredictOptions {
  DeviceOptions device;
  std::filesystem::path checkpoint;  // or a run's folder
  std::string weights = "auto";
  std::vector<std::string> images;  // files, folders, and data files with their split: "test.h5:train"
  std::size_t top = 5;              // classes told of each
  std::size_t batch = 64;
  std::filesystem::path jsonl;
  bool overwrite = false;
};

struct ExportOptions {
  std::filesystem::path checkpoint;  // or a run's folder
  std::string weights = "auto";
  std::filesystem::path output;
  bool overwrite = false;
};

struct ModelsOptions {
  std::string model;               // empty: all
  std::vector<std::size_t> image;  // height, width, channels; empty: what each model is usually trained with
  std::size_t classes = 0;         // 0: likewise
  std::filesystem::path json;
  bool overwrite = false;
};

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

struct PredictScalingOptions {
  std::filesystem::path step;  // what bench step --json has written
  std::filesystem::path fit;   // what bench all-reduce --json has; empty: the network is given
  Cluster cluster;
  std::vector<std::size_t> ranks{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  std::string all_reduce = "auto";
  BucketOptions buckets;
  std::size_t batch = 0;  // per rank; 0: the profile's
  double slow_down = 1;   // of computing beside sums
  std::filesystem::path json;
  bool overwrite = false;
};

struct BenchInputOptions {
  DataOptions data;
  std::string split = "train";
  std::size_t batch = 64;  // per rank
  double seconds = 5;
  std::uint64_t seed = 1;
  std::filesystem::path json;
  bool overwrite = false;
};

struct BenchNoiseOptions {
  double step_ms = 4;  // of computing, where nothing disturbs it
  double seconds = 3;  // for each row
  int threads = 0;     // of each rank; 0: as many as it is bound to
  std::filesystem::path json;
  std::string configuration;  // all of the above as TOML
  bool overwrite = false;
};

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

}  // namespace annulus
