#pragma once

#include "collectives/world/world.h"
#include "src/data/loader.h"

namespace annulus {

// Reports this rank's first few skipped samples on stderr.
class BadSamples {
 public:
  explicit BadSamples(int rank) : rank_(rank) {}
  std::size_t report(const Batch& batch);  // returns the batch's number of skipped samples

 private:
  const int rank_;
  std::size_t said_ = 0;
};

// Sums `skipped` over all ranks. Collective.
std::size_t skipped_on_all_ranks(const World& world, std::size_t skipped);

}  // namespace annulus
