#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "collectives/world.h"
#include "src/trainer.h"

namespace annulus {

// A size of buckets, and how long a step takes with it: the median, of the slowest rank.
struct BucketTrial {
  std::size_t bytes;
  double seconds;
};

struct BucketTuning {
  std::size_t chosen_bytes;
  std::vector<BucketTrial> trials;  // none where nothing is sent, or one bucket is all
};

// Small buckets begin their sums early and pay the sum's latency often, large ones the other way round; where the best
// lies depends on the network, the machine and the model. So a few sizes are tried on rehearsals of the step with
// `batch`, in turns, which change neither parameters nor the optimizer's state. Leaves the trainer with the best, or
// with the default where no other one gains much. The same on every rank. Takes some seconds at most, or three
// steps with each where those take longer. Collective.
BucketTuning tune_buckets(const World& world, Trainer& trainer, const Batch& batch);

// "1 MiB (of 256 KiB 3.91 ms, 1 MiB 3.60 ms, 1.6 MiB 4.02 ms)"
std::string to_string(const BucketTuning& tuning);

}  // namespace annulus
