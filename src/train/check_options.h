#pragma once

#include "src/train/train_options.h"

namespace annulus {

// Throws Error if options contradict each other or have no effect together.
void check(const TrainOptions& options);

}  // namespace annulus
