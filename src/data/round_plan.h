#pragma once

#include <cstddef>

namespace annulus {

// How ranks share the work between two exchanges: by default a step, otherwise a round of several steps.
struct RoundPlan {
  std::size_t piece_size = 0;  // see StepPlan
  bool planned = false;        // Loader::plan(), not the request's global batch, gives every size
};

}  // namespace annulus
