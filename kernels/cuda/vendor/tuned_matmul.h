#pragma once

#include <memory>

#include "kernels/cuda/vendor/matmul.h"
#include "kernels/cuda/vendor/tuning_budget.h"

namespace annulus::cuda {

// Makes a planner for the current device. Chooses algorithms by the library's heuristics or, if `tuning` names a file,
// by measurements: measures problems missing in the file once, with their epilogues, within the budget, and adds them.
std::unique_ptr<MatmulPlanner> make_matmul_planner(const Tuning& tuning, std::shared_ptr<TuningBudget> budget);

}  // namespace annulus::cuda
