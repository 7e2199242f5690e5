#pragma once

#include "collectives/world.h"
#include "src/options.h"
#include "src/watchdog.h"

namespace annulus {

// What `annulus train` exits with where it was asked to stop and has left a checkpoint to resume from: sysexits.h's
// EX_TEMPFAIL, "try again", which batch scripts take as the sign to requeue.
constexpr int kStoppedExitCode = 75;

// `annulus train`: 0, or kStoppedExitCode. Collective. Throws Error.
int train(const World& world, const TrainOptions& options, Watchdog& watchdog);

}  // namespace annulus
