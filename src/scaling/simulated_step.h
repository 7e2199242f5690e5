#pragma once

#include "collectives/gradient_buckets.h"
#include "src/scaling/all_reduce_model.h"
#include "src/scaling/step_profile.h"

namespace annulus {

// Where a step's time goes, in seconds.
struct SimulatedStep {
  double step = 0;
  double input = 0, compute = 0, exposed = 0, optimizer = 0;  // its parts
  double communication = 0;                                   // of all sums, hidden or not
  std::size_t buckets = 0;
};

// A training step in virtual time: the order of Trainer's, with GradientBuckets' own plan of what is sent when, on a
// rank that all others are like. One sum is made after the other. It is a step among others: what the one before has
// deferred goes on in its forward.
//
// `slow_down`: computing takes so many times as long while a sum is under way.
SimulatedStep simulate_step(const StepProfile& profile, const AllReduceModel& sum, const BucketOptions& buckets,
                            double slow_down = 1);

}  // namespace annulus
