#include "src/import/shard_layout.h"

#include <algorithm>

namespace annulus {
namespace {

constexpr std::uint64_t kShuffleSeed = 1;

}  // namespace

ShardLayout::ShardLayout(std::span<const std::uint64_t> sizes, bool shuffled, std::size_t files,
                         std::span<const std::uint8_t> held_out)
    : bytes_(sizes.size()) {
  if (shuffled) order_.emplace(sizes.size(), kShuffleSeed, 0);
  if (!held_out.empty()) move_to_end(held_out);
  const std::size_t held = static_cast<std::size_t>(std::ranges::count(held_out, 1));
  const auto add_shards = [&](std::size_t begin, std::size_t count) {
    for (std::size_t file = 0; file < files; ++file) {
      const Range part = split(count, files, file);
      shards_.push_back({begin + part.begin, begin + part.end});
    }
  };
  add_shards(0, sizes.size() - held);
  if (held > 0) add_shards(sizes.size() - held, held);
  std::uint64_t end = 0;
  for (const Range& shard : shards_) {
    shard_begins_.push_back(end);
    for (std::size_t position = shard.begin; position < shard.end; ++position) {
      const std::size_t sample = sample_at(position);
      bytes_[sample] = end;
      end += sizes[sample];
    }
  }
  shard_begins_.push_back(end);
}

void ShardLayout::move_to_end(std::span<const std::uint8_t> held_out) {
  std::vector<std::size_t> samples(held_out.size());
  for (std::size_t position = 0; position < samples.size(); ++position) samples[position] = sample_at(position);
  std::ranges::stable_partition(samples, [&](std::size_t sample) { return held_out[sample] == 0; });
  samples_ = std::move(samples);
}

std::size_t ShardLayout::sample_at(std::size_t position) const {
  if (!samples_.empty()) return samples_[position];
  return order_ ? order_->sample(position) : position;
}

std::size_t ShardLayout::shard_of(std::size_t sample) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(shard_begins_, bytes_[sample]) - shard_begins_.begin()) - 1;
}

}  // namespace annulus
