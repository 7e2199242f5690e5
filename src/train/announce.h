#pragma once

#include <string>

#include "src/train/replica.h"
#include "src/train/run_record.h"
#include "src/train/training_inputs.h"

namespace annulus {

// Prints the run's settings and everything that was chosen for it. `summation_before`: Replica::summation() of the run
// that this one resumes, or empty. Collective.
void announce(const TrainingInputs& inputs, const Replica& replica, const RunRecord& record,
              const std::string& summation_before);

}  // namespace annulus
