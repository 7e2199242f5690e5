#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/split.h"
#include "src/data/sampler.h"

namespace annulus {

// Maps a source split's samples to a data set's shards: the order, each sample's shard, and the byte position within
// that shard's images. Each shard holds a consecutive range in the new order. Takes 8 bytes per sample, 16 if any are
// held out.
//
// Held-out samples (see hold_out()) come after the kept samples, and then each file has two shards: with F files,
// shards 0 to F - 1 hold the kept samples, and shard F + i the held-out samples in file i.
class ShardLayout {
 public:
  // `sizes`: bytes per sample, above 0, in source order. `shuffled`: the new order is a fixed permutation of the source
  // order, else the source order. `held_out`: a flag per sample; empty: no sample is held out.
  ShardLayout(std::span<const std::uint64_t> sizes, bool shuffled, std::size_t files,
              std::span<const std::uint8_t> held_out = {});

  std::size_t sample_at(std::size_t position) const;
  std::size_t shards() const { return shards_.size(); }
  const Range& positions(std::size_t shard) const { return shards_[shard]; }  // in the new order
  std::uint64_t bytes_in(std::size_t shard) const { return shard_begins_[shard + 1] - shard_begins_[shard]; }

  std::size_t shard_of(std::size_t sample) const;
  std::uint64_t byte_in_shard(std::size_t sample) const { return bytes_[sample] - shard_begins_[shard_of(sample)]; }

 private:
  void move_to_end(std::span<const std::uint8_t> held_out);

  std::optional<EpochOrder> order_;
  std::vector<std::size_t> samples_;  // by position, if any are held out; else empty
  std::vector<Range> shards_;
  std::vector<std::uint64_t> bytes_, shard_begins_;  // as if a single file held all shards; the last is the end
};

}  // namespace annulus
