#pragma once

#include "collectives/gradient_buckets.h"
#include "src/scaling/all_reduce_model.h"
#include "src/scaling/step_profile.h"

namespace annulus {

// The parts of a step's time, in seconds.
struct SimulatedStep {
  double step = 0;
  double input = 0, compute = 0, exposed = 0, optimizer = 0;  // the step's parts
  double waiting = 0;                                         // also a part: for the slowest rank
  double embedding = 0;      // also a part: exchanging a shared embedding's rows, without all-reduces
  double communication = 0;  // in all all-reduces, hidden or not
  std::size_t buckets = 0;
};

// How ranks disturb each other. A rank alone is not disturbed.
struct Interference {
  double slow_down = 1;   // factor by which computing takes longer during an all-reduce
  double contention = 1;  // factor by which a rank's own work takes longer beside other ranks, which share its memory

  // A rank's mean delay in a step, as a share of its computing. Delays are modeled as exponentially distributed and
  // independent, so the slowest of N ranks is late by waiting (1 + 1/2 + ... + 1/N): all ranks wait for it, 1/2 + ... +
  // 1/N times the mean delay.
  double waiting = 0;
};

// Simulates a training step in virtual time: in the order of SynchronousStep, with GradientBuckets' own schedule. The
// slowest rank is simulated, and all-reduces run in sequence. The step is in steady state: buckets that the
// previous step has deferred finish during forward.
//
// If the profile has a shared embedding, the tokens are all-reduced before forward, and the rows after backward, before
// the deferred buckets; the buckets with the embedding's table are updated after that.
SimulatedStep simulate_step(const StepProfile& profile, const AllReduceModel& sum, const BucketOptions& buckets,
                            const Interference& interference = {});

}  // namespace annulus
