#pragma once

#include <cstddef>
#include <string>

#include "collectives/world/world.h"

namespace annulus {

// Options of steps that are rounds, see RoundStep.
struct RoundOptions {
  std::size_t batch = 1;  // samples of a part of a rank's share
  std::size_t ranks = 1;  // ranks that compute
};

// See LocalStep.
struct LocalRounds {
  RoundOptions round{};
  std::string outer = "average";  // the outer optimizer
};

// See AsyncStep.
struct AsyncRounds {
  RoundOptions round{};
  std::size_t staleness = 0;     // the most steps that a rank may be ahead of the slowest
  std::size_t servers = 0;       // further ranks, which only serve; 0: all ranks serve
  int threads = 1;               // of the host beside a GPU, if this rank's share of the processors allows it
  const World* world = nullptr;  // all ranks
};

}  // namespace annulus
