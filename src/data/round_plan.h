#pragma once

#include <cstddef>

namespace annulus {

// How ranks share what they compute between two meetings: a step, which is the default, or a round of several.
struct RoundPlan {
  std::size_t piece_size = 0;  // see StepPlan
  bool planned = false;        // Loader::plan(), not the request's global batch, gives every size
};

}  // namespace annulus
