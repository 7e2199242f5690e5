#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "src/data/round_plan.h"
#include "src/step/strategy.h"
#include "src/train/train_options.h"

namespace annulus {

// What a strategy decides about a run's steps, on this rank.
struct StrategyPlan {
  StepStrategy step = Strategy::synchronous;  // see make_step()
  std::size_t unit = 1;                       // samples that no share cuts: those of a rank's own update
  RoundPlan round{};                          // for the loader
  std::size_t steps = 1;                      // as which each step of the run counts, unless it is paced
  std::optional<double> pace{};               // the length of each step in seconds, for Pace; none: in samples
  std::size_t largest_part = 0;               // samples; 0: as the options cut a share
};

// Plans for the ranks of `world`.
StrategyPlan plan_strategy(const World& world, const TrainOptions& options, std::size_t global_batch);

// What people read about a strategy. `workers`: ranks that compute.
std::vector<std::string> announcement(const StrategyOptions& options, const StrategyPlan& plan, std::size_t workers);
// What the bits of a run depend on besides its all-reduce: ", ...", or nothing.
std::string summation_note(const StrategyOptions& options);
// Options to lower if the loss rises: "--lr".
std::string remedies_for_rise(const StrategyOptions& options);

}  // namespace annulus
