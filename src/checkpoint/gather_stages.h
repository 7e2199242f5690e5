#pragma once

#include "collectives/world/world.h"
#include "src/checkpoint/checkpoint.h"

namespace annulus {

// Gathers the arrays of a pipeline's stages on rank 0, array by array: they pass through rank 0's memory only.
// `stages`: a rank for each stage, in order; `own`: the stage's arrays. Returns, on rank 0, all arrays in the order in
// which a rank with the whole network has them, each once; must be visited once. Other ranks return when rank 0 has
// visited theirs. Collective.
ArraySource gather_stages(const World& stages, const ArraySource& own);

}  // namespace annulus
