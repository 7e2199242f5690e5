#pragma once

#include <cstddef>
#include <string>

#include "collectives/world/world.h"

namespace annulus {

// Options of a round, see make_step().
struct RoundOptions {
  std::size_t batch = 0;          // samples of a part of a rank's share; 0: steps are no rounds
  std::string outer = "average";  // the outer optimizer of local
  std::size_t ranks = 1;          // ranks that compute
  std::size_t global_batch = 0;   // samples of a step (async)
  std::size_t staleness = 0;      // the most steps that a rank may be ahead of the slowest one (async)
  std::size_t servers = 0;        // further ranks, which only serve; 0: all ranks serve (async)
  int threads = 1;                // of the host beside a GPU, if this rank's share of the processors allows it (async)
  const World* world = nullptr;   // all ranks (async)
};

}  // namespace annulus
