#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "src/scaling/all_reduce_model.h"
#include "src/scaling/simulated_step.h"

namespace annulus {

struct PredictScalingOptions {
  std::filesystem::path step;  // output from bench step --json
  std::filesystem::path fit;   // output from bench all-reduce --json; empty: the network is given in `cluster`
  Cluster cluster;
  std::vector<std::size_t> ranks;  // empty: powers of two up to 4096, as far as the link is known
  std::string all_reduce = "auto";
  BucketOptions buckets;
  std::size_t batch = 0;  // per rank; 0: the profile's
  Interference interference;
  std::filesystem::path noise;  // a run's results.json; empty: no prediction of the time to a loss
  std::filesystem::path json;
  bool overwrite = false;
};

// Predicts training on more or fewer ranks from a single rank's step profile and from the links' latency and
// bandwidth (simulated_step.h, all_reduce_model.h). Weak scaling: every rank has the same batch; the efficiency on N
// ranks is their images/s (or tokens/s) divided by N times a single rank's, which are predicted as well.
//
// Prints a table; rows with more ranks than were measured are marked as extrapolated. A link that was measured on one
// node is memory: it predicts no more ranks than were measured. Not modeled: ranks that are
// always slower than others, networks that carry less than all links together, and reading images.
//
// With --json:
//
//    {"model", "all_reduce", "link": {"latency_us", "bandwidth_gbit_s", "source", "residual"},
//     "baseline": {"ranks": 1, "batch_per_rank", "step_ms", "images_per_second", "source"},
//     "predictions": [{"ranks", "nodes", "batch_per_rank", "global_batch", "step_ms", "compute_ms", "waiting_ms",
//                      "exposed_ms", "embedding_ms", "communication_ms", "images_per_second", "efficiency",
//                      "extrapolated"}, ...]}
//
// With `noise`, also prints and writes how much sooner than a single rank each number of ranks reaches the same loss
// (time_to_loss.h): "loss_speedup", "loss_speedup_low" and "loss_speedup_high" in each prediction, and
//
//    "noise": {"scale", "low", "high", "source", "ranks_worth"}
//
// A language model has "tokens_per_second" instead. "embedding_ms" is the time for exchanging a shared embedding's
// rows, without all-reduces; 0 if none is shared. There are as many rows as for random tokens, which are more than text
// has.
//
// "residual" is the fit's relative root mean square error, or null without a fit. "communication_ms" is the time in
// all all-reduces, "exposed_ms" the part that no computation hides. Throws Error.
void predict_scaling(const PredictScalingOptions& options);

}  // namespace annulus
