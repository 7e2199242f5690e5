#pragma once

#include "collectives/world/world.h"
#include "src/data/loader.h"

namespace annulus {

// Counts the skipped samples of this rank, and reports the first few of a run on stderr.
class BadSamples {
 public:
  explicit BadSamples(int rank) : rank_(rank) {}
  void add(const Batch& batch);
  std::size_t take_all(const World& world);  // number on all ranks since the last call; collective

 private:
  const int rank_;
  std::size_t said_ = 0;
  std::size_t count_ = 0;
};

}  // namespace annulus
