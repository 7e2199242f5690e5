#pragma once

#include <optional>

#include "collectives/world/aligned_clock.h"
#include "collectives/world/world.h"
#include "src/data/bad_samples.h"
#include "src/io/progress.h"
#include "src/job/activity.h"
#include "src/job/faults.h"
#include "src/metrics/results.h"
#include "src/step/gradient_noise.h"
#include "src/step/timeline.h"
#include "src/train/train_options.h"

namespace annulus {

// What a run reports: its position to the watchdog, its progress to the user, and its timeline and results to files.
struct RunRecord {
  // Collective: compares the ranks' clocks.
  RunRecord(const World& world, const TrainOptions& options, Activity& activity_)
      : activity(activity_),
        clock_offset(clock_offset_to_root(world)),
        timeline(options.timeline, clock_offset),
        progress(world.root()),
        bad_samples(world.rank()),
        faults(options.faults) {}

  Activity& activity;
  const double clock_offset;
  Timeline timeline;
  Progress progress;
  RunResult result;
  std::optional<EpochResult> epoch;  // the current one
  GradientNoise noise;               // the same on every rank
  BadSamples bad_samples;
  std::vector<Fault> faults;  // injected ones, those that struck counted
};

}  // namespace annulus
