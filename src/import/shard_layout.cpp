#include "src/import/shard_layout.h"

#include <algorithm>

namespace annulus {
namespace {

constexpr std::uint64_t kSeed = 1;

}  // namespace

ShardLayout::ShardLayout(std::span<const std::uint64_t> sizes, bool shuffled, std::size_t shards)
    : bytes_(sizes.size()) {
  if (shuffled) order_.emplace(sizes.size(), kSeed, 0);
  std::uint64_t end = 0;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    shards_.push_back(split(sizes.size(), shards, shard));
    shard_begins_.push_back(end);
    for (std::size_t position = shards_[shard].begin; position < shards_[shard].end; ++position) {
      const std::size_t sample = sample_at(position);
      bytes_[sample] = end;
      end += sizes[sample];
    }
  }
  shard_begins_.push_back(end);
}

std::size_t ShardLayout::shard_of(std::size_t sample) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(shard_begins_, bytes_[sample]) - shard_begins_.begin()) - 1;
}

}  // namespace annulus
