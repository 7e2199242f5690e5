#pragma once

#include "collectives/world/world.h"
#include "src/job/watchdog.h"
#include "src/train/train_options.h"

namespace annulus {

// `annulus train`: 0, or kStoppedExitCode. Collective. Throws Error.
int train(const World& world, const TrainOptions& options, Watchdog& watchdog);

}  // namespace annulus
