#pragma once

#include <cstddef>

namespace annulus {

// A half-open range of indices.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `part` of `count` things split over `parts` as evenly as it goes: sizes differ by at most one, the larger
// parts come first, and there is no overlap and no gap. Parts are empty where count < parts.
constexpr Range split(std::size_t count, std::size_t parts, std::size_t part) {
  const std::size_t size = count / parts;
  const std::size_t larger = count % parts;
  const std::size_t begin = part * size + (part < larger ? part : larger);
  return {begin, begin + size + (part < larger ? 1 : 0)};
}

}  // namespace annulus
