#pragma once

#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "src/step/trainer.h"

namespace annulus {

// A tried bucket configuration, and the median time of a step with it on the slowest rank.
struct BucketTrial {
  BucketOptions buckets;
  double seconds;
};

struct BucketTuning {
  BucketOptions chosen;
  std::vector<BucketTrial> trials;  // none if nothing is sent or there is only one choice
};

// Chooses the bucket options by measurement. Small buckets begin their all-reduces early but pay the latency often,
// large ones vice versa; the optimum depends on the network, the machine and the model. So a few sizes and deferred
// shares are tried, in turns, on rehearsals of the step with `batch`, which do not change parameters; the optimizer's
// states may be discarded, see Trainer::cut_buckets(). Leaves the trainer with the best ones, or with the default if no
// others are much faster. The same on every rank. Takes some seconds, or two steps with each option if those take
// longer. Collective.
BucketTuning tune_buckets(const World& world, Trainer& trainer, const Batch& batch);

std::string to_string(const BucketOptions& buckets);  // "1 MiB, 25 % deferred"
std::string to_string(const BucketTuning& tuning);    // with the times of the others

}  // namespace annulus
