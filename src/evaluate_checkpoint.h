#pragma once

#include "collectives/world.h"
#include "src/activity.h"
#include "src/options.h"

namespace annulus {

// `annulus eval`. Collective. Throws Error.
void evaluate(const World& world, const EvaluateOptions& options, Activity& activity);

}  // namespace annulus
