#pragma once

#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "src/step/trainer.h"

namespace annulus {

// Buckets that were tried, and how long a step takes with them: the median, of the slowest rank.
struct BucketTrial {
  BucketOptions buckets;
  double seconds;
};

struct BucketTuning {
  BucketOptions chosen;
  std::vector<BucketTrial> trials;  // none where nothing is sent, or one bucket is all
};

// Small buckets begin their sums early and pay the sum's latency often, large ones the other way round; where the best
// lies depends on the network, the machine and the model. So a few sizes are tried, and shares to defer, on rehearsals
// of the step with `batch`, in turns, which change neither parameters nor the optimizer's state. Leaves the trainer
// with the best, or with the default where no other gains much. The same on every rank. Takes some seconds, or two
// steps with each where those take longer. Collective.
BucketTuning tune_buckets(const World& world, Trainer& trainer, const Batch& batch);

std::string to_string(const BucketOptions& buckets);  // "1 MiB, 25 % deferred"
std::string to_string(const BucketTuning& tuning);    // and what the others took

}  // namespace annulus
