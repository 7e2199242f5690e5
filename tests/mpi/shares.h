#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "collectives/world/world.h"

// The inputs of all-reduces in tests, and their expected results.
namespace annulus::test {

// A share of small integers, which float32 adds exactly in any order. A different `salt` gives a different share.
inline std::vector<float> integers(std::size_t count, int rank, std::size_t salt = 0) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(((i + salt) * 31) % 1009 + static_cast<unsigned>(rank));
  return values;
}

inline std::vector<float> exact_sum(std::size_t count, int size, std::size_t salt = 0) {
  std::vector<float> sum(count);
  const auto n = static_cast<std::size_t>(size);
  for (std::size_t i = 0; i < count; ++i) sum[i] = static_cast<float>(n * (((i + salt) * 31) % 1009) + n * (n - 1) / 2);
  return sum;
}

// A share whose sums are rounded, so that their bits depend on the order of the additions.
inline std::vector<float> fractions(std::size_t count, int rank) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = 1.0f / static_cast<float>(3 + (i * 31) % 1009 + 7 * static_cast<unsigned>(rank));
  return values;
}

inline std::uint64_t hash(std::span<const float> values) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

// Not CHECK(a == b), which prints both arrays completely if they differ.
inline void check_equal(std::span<const float> values, std::span<const float> expected) {
  REQUIRE(values.size() == expected.size());
  const auto [wrong, right] = std::ranges::mismatch(values, expected);
  if (wrong == values.end()) return;
  FAIL("element " << wrong - values.begin() << " of " << values.size() << " is " << *wrong << " instead of " << *right);
}

inline void check_same_on_every_rank(const World& world, std::span<const float> values) {
  const std::uint64_t mine = hash(values);
  CHECK(world.gather(mine) == std::vector(static_cast<std::size_t>(world.size()), mine));
}

}  // namespace annulus::test
