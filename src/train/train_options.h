#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "src/data/data_options.h"
#include "src/job/faults.h"
#include "src/job/open_device.h"
#include "src/metrics/run_metrics.h"
#include "src/step/timeline.h"
#include "src/train/goal.h"
#include "src/train/interval.h"
#include "src/train/optimizer_options.h"
#include "src/train/schedule.h"
#include "src/train/strategy_options.h"

namespace annulus {

// A number for the parameters that match a pattern (models/rewrites/freeze.h).
struct PatternValue {
  std::string pattern;
  float value;
};

// What happens when ranks are lost, or bits flip.
struct SurvivalOptions {
  bool on = false;             // go on without them
  std::size_t min_ranks = 1;   // fewer write a checkpoint and end
  double lost_after = 2;       // seconds of silence
  std::optional<bool> verify;  // compare what must be the same on all ranks; none: see verifies()
};

// See Averaging.
struct LookaheadOptions {
  std::size_t every = 0;  // steps; 0: off
  double decay = 0;       // at the run's end
};

// The options of `annulus train`.
struct TrainOptions {
  DeviceOptions device;
  TimelineOptions timeline;
  MetricsOptions metrics;
  DataOptions data;
  std::filesystem::path out;
  std::string model = "lenet";
  std::size_t batch = 64;        // per rank, or per pipeline
  std::size_t global_batch = 0;  // over all ranks; 0: batch on each
  std::size_t accumulate = 1;    // number of parts in which a rank computes a share
  std::size_t shards = 0;  // in which the global batch is computed, see collectives/shard_tree.h; 0: as many as ranks
  SurvivalOptions survival;
  std::size_t epochs = 1;
  std::size_t max_steps = 0;       // 0: no limit
  std::optional<Goal> until;       // the run ends when an evaluation reaches it
  std::size_t patience = 0;        // evaluations in a row that are not the best, after which the run ends; 0: no limit
  std::optional<Measure> best_by;  // none: the main measure of the data
  ScheduleOptions schedule;
  OptimizerOptions optimizer;
  std::vector<PatternValue> rate_factors, weight_decays;  // of parameters; the last that matches counts
  double muon_rate = 0;                                   // of Muon's matrices; 0: the rate
  std::vector<std::string> muon_except;                   // patterns of parameters that are no matrices for Muon
  float clip_norm = 0;                                    // 0: gradients are not clipped
  std::size_t skip_not_finite = 0;                        // updates in a row; 0: gradients are not checked
  double ema = 0;                                         // decay of the moving average of the weights; 0: none
  LookaheadOptions lookahead;
  bool sync_batch_norm = false;
  std::string recompute = "none";
  float dropout = 0;          // of transformers
  std::string loss = "auto";  // see parse_loss()
  float label_smoothing = 0;
  std::vector<float> class_weights;  // of the loss, for each class; empty: all 1
  bool balance_classes = false;      // weights inversely proportional to the classes' numbers of images
  bool zero_init = false;
  std::string whiten;                      // the first convolution, which is whitened; empty: none
  std::vector<std::string> freeze;         // patterns of parameters that do not change
  std::vector<PatternValue> freeze_after;  // and those that do not change after N epochs
  // Initial weights: random, or a file of them, see load_initial_weights(); auto: the ONNX file's, or else random.
  std::string weights = "auto";
  std::string pixels = "auto";  // that the network of an ONNX file reads, see parse_pixels()
  std::uint64_t seed = 1;
  StrategyOptions strategy;
  std::string all_reduce = "auto";
  std::string wire = "fp32";
  BucketOptions buckets;
  std::optional<Interval> evaluate_every = Interval{};  // and at the run's end; none: never
  std::size_t evaluation_steps = 0;                     // evaluate the first N global batches only; 0: all
  Interval checkpoint_every;                            // and when the run stops, and after the best evaluation so far
  std::size_t keep = 2;                                 // number of most recent checkpoints to keep
  bool resume = false;
  bool take_over = false;      // wait until another job hands the run over
  bool data_changed = false;   // accept different data with --resume
  std::vector<Fault> faults;   // for tests
  std::string configuration;   // the configurable options as TOML, see OUT/config.toml
  bool overwrite = false;      // replace any existing files
  std::filesystem::path json;  // another file for the results; empty: none
  bool dry_run = false;        // report what a run would do and need, without writing to `out`
  // Called on rank 0 with the best checkpoint when the run is complete, while the run's folder is claimed.
  std::function<void(const std::filesystem::path& best)> on_complete;
};

}  // namespace annulus
