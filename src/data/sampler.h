#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/base/split.h"

namespace annulus {

// Orders an epoch's samples: a permutation on [0, size) that depends on (seed, epoch) only, not on rank or number of
// ranks. Needs no memory and computes any position directly: a four-round Feistel network on the smallest even number
// of bits that holds `size`, walked until the value is in range (Black and Rogaway, "Ciphers with arbitrary finite
// domains", CT-RSA 2002, section 4).
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

// Reads a data set nearly sequentially, for disks and file systems with slow random access: cuts the data set into
// blocks with consecutive samples, at an offset that differs in each epoch, puts the blocks in random order, and
// shuffles the samples within every `window` consecutive blocks in that order. Like EpochOrder, depends on (seed,
// epoch) only, needs no memory, and visits every sample once.
class BlockOrder {
 public:
  BlockOrder(std::size_t size, std::size_t block, std::size_t window, std::uint64_t seed, std::uint64_t epoch);
  std::size_t sample(std::size_t position) const;  // position < size

  // Return a position's window and the number of windows, and visit a window's blocks as sample ranges, modulo `size`.
  std::size_t window_of(std::size_t position) const { return position / (block_ * window_); }
  std::size_t windows() const { return window_of(size_ - 1) + 1; }
  template <class Visit>
  void for_each_block(std::size_t window, const Visit& visit) const {
    for (std::size_t number = window * window_; number < (window + 1) * window_ && number * block_ < size_; ++number) {
      const std::size_t begin = block_begin(number);
      visit(Range{begin, begin + std::min(block_, size_ - number * block_)});
    }
  }

 private:
  std::size_t block_begin(std::size_t number) const;  // where the order's block `number` begins

  std::size_t size_, block_, window_;
  std::uint64_t key_;
  std::size_t shift_;                 // where the first block starts
  std::optional<EpochOrder> blocks_;  // orders the whole blocks, if there are any
};

// Says which order is requested.
struct Shuffle {
  enum class Kind { none, global, block } kind = Kind::global;
  std::size_t block = 256, window = 16;
};

// Holds EpochOrder, BlockOrder, or the files' order, for evaluation.
class SampleOrder {
 public:
  SampleOrder(const Shuffle& shuffle, std::size_t size, std::uint64_t seed, std::uint64_t epoch);
  std::size_t sample(std::size_t position) const;
  const BlockOrder* blocks() const { return std::get_if<BlockOrder>(&order_); }  // null for another order

 private:
  struct FileOrder {
    std::size_t sample(std::size_t position) const { return position; }
  };
  std::variant<FileOrder, EpochOrder, BlockOrder> order_;
};

// Marks a run's position in the data. Independent from ranks, so a run can resume on another number of ranks.
struct Cursor {
  std::uint64_t epoch = 0;     // 0 is the first
  std::uint64_t position = 0;  // in the epoch's order: samples [0, position) have been trained on

  bool operator==(const Cursor&) const = default;
};

// Plans a step over all ranks.
struct StepPlan {
  std::uint64_t epoch;
  Range positions;  // in the epoch's order; shorter in the last step of an epoch
  bool last_of_epoch;
  std::vector<std::size_t> weights{};  // per rank, for the shares; empty: equal shares
  // The ranks share pieces with this many positions, each like a plan by itself; 0: the whole is a single piece.
  // REQUIRES with pieces: there are neither weights nor shards.
  std::size_t piece_size = 0;

  std::size_t global_batch() const { return positions.size(); }
  // Returns the `positions` in the rank's shards (0: a shard per rank); empty if there are too few. Ranks beyond
  // `ranks`, which only serve (make_strategy()), get none. Leaves blocks of `unit` positions whole. With pieces only
  // the size has a meaning, see position(). REQUIRES: there are no weights if there are shards.
  Range share(int rank, int ranks, std::size_t shards = 0, std::size_t unit = 1) const;
  // Returns the position for sample `number` in the rank's `share`; with pieces, past the share's end, any position.
  std::size_t position(const Range& share, int rank, int ranks, std::size_t number) const;
};

// Return the step that begins at `cursor`, and the cursor after a step (the next epoch's position 0 after an epoch's
// last).
StepPlan plan_step(const Cursor& cursor, std::size_t dataset_size, std::size_t global_batch);
Cursor after(const StepPlan& step);

}  // namespace annulus
