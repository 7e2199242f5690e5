#pragma once

#include <cstddef>

#include "src/step/utilization.h"
#include "src/train/replica.h"
#include "src/train/training_inputs.h"

namespace annulus {

// Returns the share of a step's time that a Verifier is expected to take without a ShardCheck. `gradient_bytes`: of a
// rank; `flops`: of a step on all ranks, whose peak is `peak` FLOP/s.
double verifying_cost(std::size_t gradient_bytes, double flops, double peak);

// Whether the ranks compare what must be the same on all of them: with --verify, and without that option if it is
// expected to take at most 0.5 % of a step, and all other options support it. The same on all ranks.
bool verifies(const TrainingInputs& inputs, const Replica& replica, const Utilization& utilization);

}  // namespace annulus
