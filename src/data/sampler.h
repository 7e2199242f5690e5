#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/split.h"

namespace annulus {

// The order of the samples in an epoch: a permutation of [0, size) that is a function of (seed, epoch) and of nothing
// else, neither the rank nor the number of ranks. It needs no memory and any position is found at once: a four-round
// Feistel network on the smallest even number of bits that holds `size`, walked until the value is in range (Black and
// Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4).
class EpochOrder {
 public:
  EpochOrder(std::size_t size, std::uint64_t seed, std::uint64_t epoch);
  std::size_t sample(std::size_t position) const;  // position < size

 private:
  std::uint64_t encrypt(std::uint64_t value) const;
  std::size_t size_;
  std::uint64_t key_;
  int half_bits_;
};

// How far a run has come in its data. Knows nothing of ranks, so a run can resume on another number of them.
struct Cursor {
  std::uint64_t epoch = 0;     // 0 is the first
  std::uint64_t position = 0;  // in the epoch's order: samples [0, position) have been trained on

  bool operator==(const Cursor&) const = default;
};

// The plan of one step over all ranks.
struct StepPlan {
  std::uint64_t epoch;
  Range positions;  // in the epoch's order; shorter in the last step of an epoch
  bool last_of_epoch;

  std::size_t global_batch() const { return positions.size(); }
  Range share(int rank, int ranks) const;  // the rank's part of `positions`; empty where there are too few
};

// The step that begins at `cursor`, and where it leaves off (position 0 of the next epoch after the last).
StepPlan plan_step(const Cursor& cursor, std::size_t dataset_size, std::size_t global_batch);
Cursor after(const StepPlan& step);

}  // namespace annulus
