#pragma once

#include <cstddef>
#include <span>

namespace annulus {

// A half-open range of indices.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Returns part `part` when `count` items are split as evenly as possible into `parts`: sizes differ by at most 1, the
// larger parts come first, and there is no overlap and no gap. If count < parts, some parts are empty.
constexpr Range split(std::size_t count, std::size_t parts, std::size_t part) {
  const std::size_t size = count / parts;
  const std::size_t larger = count % parts;
  const std::size_t begin = part * size + (part < larger ? part : larger);
  return {begin, begin + size + (part < larger ? 1 : 0)};
}

// Like split(), but without cutting blocks of `block` items; the last block may be smaller.
constexpr Range split_blocks(std::size_t count, std::size_t block, std::size_t parts, std::size_t part) {
  const Range blocks = split((count + block - 1) / block, parts, part);
  const auto bounded = [count, block](std::size_t number) { return number * block < count ? number * block : count; };
  return {bounded(blocks.begin), bounded(blocks.end)};
}

// Splits in proportion to weights, exactly if they add up to `count`. REQUIRES: some weight is not 0.
constexpr Range split_by_weight(std::size_t count, std::span<const std::size_t> weights, std::size_t part) {
  std::size_t sum = 0, before = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (i < part) before += weights[i];
  }
  return {count * before / sum, count * (before + weights[part]) / sum};
}

}  // namespace annulus
