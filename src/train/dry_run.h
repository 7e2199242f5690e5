#pragma once

#include <string>
#include <vector>

#include "src/train/replica.h"
#include "src/train/training_inputs.h"

namespace annulus {

// A dry run's measured steps.
struct StepTrial {
  std::size_t warm_up = 0;      // steps before the measured ones
  std::vector<double> seconds;  // for each step, on the slowest rank
};

// Returns the number of steps that a run makes after `state`, unless it ends early.
std::uint64_t steps_left(const TrainingInputs& inputs, const RunState& state);

// "33 on ranks 0-1, 32 on ranks 2-5, 0 on rank 6"
std::string shares_text(const std::vector<std::uint64_t>& shares);

// Prints what a run after `state` would do and need, on rank 0. Collective.
void report_dry_run(const TrainingInputs& inputs, Replica& replica, const RunState& state, const StepTrial& trial);

}  // namespace annulus
