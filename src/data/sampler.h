#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/base/split.h"

namespace annulus {

// The order of the samples in an epoch: a permutation of [0, size) that is a function of (seed, epoch) only,
// independent of the rank and the number of ranks. It needs no memory and computes any position directly: a four-round
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

// An order that reads a data set nearly sequentially, for disks and file systems with slow random access: the data set
// is cut into blocks of consecutive samples, at an offset that differs in each epoch; the blocks are put in random
// order, and the samples of each `window` consecutive blocks of that order are shuffled. Like EpochOrder it is a
// function of (seed, epoch) only, needs no memory, and visits every sample once.
class BlockOrder {
 public:
  BlockOrder(std::size_t size, std::size_t block, std::size_t window, std::uint64_t seed, std::uint64_t epoch);
  std::size_t sample(std::size_t position) const;  // position < size

  // The window of a position, the number of windows, and the blocks of a window as ranges of samples, modulo the size.
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
  std::size_t block_begin(std::size_t number) const;  // of the block at this position in the order

  std::size_t size_, block_, window_;
  std::uint64_t key_;
  std::size_t shift_;                 // start of the first block
  std::optional<EpochOrder> blocks_;  // order of the whole blocks; none if there are none
};

// The requested order.
struct Shuffle {
  enum class Kind { none, global, block } kind = Kind::global;
  std::size_t block = 256, window = 16;
};

// One of the above orders, or the order of the files, for evaluation.
class SampleOrder {
 public:
  SampleOrder(const Shuffle& shuffle, std::size_t size, std::uint64_t seed, std::uint64_t epoch);
  std::size_t sample(std::size_t position) const;
  const BlockOrder* blocks() const { return std::get_if<BlockOrder>(&order_); }  // null if it is another order

 private:
  struct FileOrder {
    std::size_t sample(std::size_t position) const { return position; }
  };
  std::variant<FileOrder, EpochOrder, BlockOrder> order_;
};

// The position of a run in its data. Independent of ranks, so a run can resume on another number of them.
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
  std::vector<std::size_t> weights{};  // of the ranks' shares; empty: all are the same
  // Of a round, the samples of each of its steps, of which a rank has the same share as if they were no round; 0: the
  // whole is shared in one piece. REQUIRES: there are neither weights nor shards.
  std::size_t step_size = 0;

  std::size_t global_batch() const { return positions.size(); }
  // Returns the rank's part of `positions`, that of its shards (0: each rank is one); empty if there are too few.
  // Further ranks, which only serve (make_strategy()), have none. Blocks of `unit` positions are not cut. Of a round
  // in steps only its size has a meaning. REQUIRES: there are no weights if there are shards.
  Range share(int rank, int ranks, std::size_t shards = 0, std::size_t unit = 1) const;
  // Returns the position of sample `number` of a rank's share of a round in steps; past its end that of some sample.
  std::size_t position_in_round(int rank, int ranks, std::size_t number) const;
};

// The step that begins at `cursor`, and the cursor after it (position 0 of the next epoch after the last step of one).
StepPlan plan_step(const Cursor& cursor, std::size_t dataset_size, std::size_t global_batch);
Cursor after(const StepPlan& step);

}  // namespace annulus
