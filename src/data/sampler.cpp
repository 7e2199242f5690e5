#include "src/data/sampler.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace annulus {

EpochOrder::EpochOrder(std::size_t size, std::uint64_t seed, std::uint64_t epoch)
    : size_(size), key_(mix(seed, epoch)), half_bits_(static_cast<int>((std::bit_width(size - 1) + 1) / 2)) {}

// Any round function gives a permutation, because applying a round again undoes it.
std::uint64_t EpochOrder::encrypt(std::uint64_t value) const {
  constexpr std::uint64_t kRounds = 4;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    left ^= mix(key_ + round, right) & mask;
    std::swap(left, right);
  }
  return left << half_bits_ | right;
}

// Encrypting an out-of-range value again follows a cycle in the permutation, which returns into the range, at the
// latest at `position`. The domain is less than four times `size`, so the walk is short.
std::size_t EpochOrder::sample(std::size_t position) const {
  std::uint64_t value = position;
  do {
    value = encrypt(value);
  } while (value >= size_);
  return value;
}

BlockOrder::BlockOrder(std::size_t size, std::size_t block, std::size_t window, std::uint64_t seed, std::uint64_t epoch)
    : size_(size), block_(block), window_(window), key_(mix(seed, epoch, block)), shift_(mix(key_) % size) {
  if (size / block > 0) blocks_.emplace(size / block, seed, epoch);
}

// Samples that do not fill a whole block come in the last window; the shift decides which samples.
std::size_t BlockOrder::block_begin(std::size_t number) const {
  const std::size_t whole = size_ / block_;
  return (number < whole ? blocks_->sample(number) : number) * block_ + shift_;
}

std::size_t BlockOrder::sample(std::size_t position) const {
  const std::size_t window = window_of(position);
  const std::size_t begin = window * block_ * window_;
  const EpochOrder within(std::min(block_ * window_, size_ - begin), key_, window);
  const std::size_t mixed = begin + within.sample(position - begin);
  return (block_begin(mixed / block_) + mixed % block_) % size_;
}

SampleOrder::SampleOrder(const Shuffle& shuffle, std::size_t size, std::uint64_t seed, std::uint64_t epoch) {
  if (shuffle.kind == Shuffle::Kind::global) order_.emplace<EpochOrder>(size, seed, epoch);
  if (shuffle.kind == Shuffle::Kind::block)
    order_.emplace<BlockOrder>(size, shuffle.block, shuffle.window, seed, epoch);
}

std::size_t SampleOrder::sample(std::size_t position) const {
  return std::visit([position](const auto& order) { return order.sample(position); }, order_);
}

Range StepPlan::share(int rank, int ranks, std::size_t shards, std::size_t unit) const {
  const auto all = static_cast<std::size_t>(ranks);
  if (rank >= ranks) return {positions.end, positions.end};
  if (!weights.empty()) {
    const std::size_t blocks = (positions.size() + unit - 1) / unit;
    const Range own = split_by_weight(blocks, weights, static_cast<std::size_t>(rank));
    return {std::min(positions.begin + own.begin * unit, positions.end),
            std::min(positions.begin + own.end * unit, positions.end)};
  }
  if (piece_size > 0) {
    const auto size = [&](std::size_t samples) { return split(samples, all, static_cast<std::size_t>(rank)).size(); };
    const std::size_t pieces = positions.size() / piece_size;
    return {positions.begin, positions.begin + pieces * size(piece_size) + size(positions.size() % piece_size)};
  }
  if (shards == 0) shards = all;
  const Range own = split(shards, all, static_cast<std::size_t>(rank));
  const auto shard = [&](std::size_t number) { return split_blocks(positions.size(), unit, shards, number); };
  return {positions.begin + shard(own.begin).begin, positions.begin + shard(own.end - 1).end};
}

std::size_t StepPlan::position(const Range& share, int rank, int ranks, std::size_t number) const {
  if (piece_size == 0) return share.begin + number;
  const auto own = [&](std::size_t samples) {
    return split(samples, static_cast<std::size_t>(ranks), static_cast<std::size_t>(rank));
  };
  const std::size_t size = own(piece_size).size(), begin = positions.begin + number / size * piece_size;
  if (begin >= positions.end) return positions.end;
  return begin + own(std::min(piece_size, positions.end - begin)).begin + number % size;
}

StepPlan plan_step(const Cursor& cursor, std::size_t dataset_size, std::size_t global_batch) {
  if (cursor.position >= dataset_size) {
    fail("cannot resume at sample {} of an epoch of {}; the checkpoint was made with different data", cursor.position,
         dataset_size);
  }
  const std::size_t end = cursor.position + std::min(global_batch, dataset_size - cursor.position);
  return {cursor.epoch, {cursor.position, end}, end == dataset_size};
}

Cursor after(const StepPlan& step) {
  if (step.last_of_epoch) return {step.epoch + 1, 0};
  return {step.epoch, step.positions.end};
}

}  // namespace annulus
