#pragma once

#include "collectives/world/world.h"
#include "src/data/loader.h"

namespace annulus {

// Reports the first few skipped samples of this rank on stderr.
class BadSamples {
 public:
  explicit BadSamples(int rank) : rank_(rank) {}
  std::size_t report(const Batch& batch);  // returns their number

 private:
  const int rank_;
  std::size_t said_ = 0;
};

// Returns the sum of the ranks' numbers of skipped samples. Collective.
std::size_t skipped_on_all_ranks(const World& world, std::size_t skipped);

}  // namespace annulus
