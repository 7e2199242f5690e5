#pragma once

#include "collectives/world/world.h"
#include "src/job/watchdog.h"
#include "src/train/train_options.h"

namespace annulus {

// Runs `annulus train`. Returns 0, kStoppedExitCode if a signal stopped it, or kHandedOverExitCode if the next job
// continues it. Collective. Throws Error.
int train(const World& world, const TrainOptions& options, Watchdog& watchdog);

}  // namespace annulus
