#pragma once

#include <cstddef>
#include <span>

#include "collectives/sum_algorithm.h"
#include "collectives/world.h"

namespace annulus {

// What algorithms take here, for choosing between them. Takes some milliseconds. Collective; the same on every rank.

// The median of a few sums of these arrays, on the slowest rank.
double seconds_of_sum(const World& world, SumAlgorithm& algorithm, std::span<float> values);

// The largest of a few sizes, in bytes, up to which small_seconds(bytes) is not more than large_seconds(bytes); 0 where
// it is at once.
constexpr std::size_t kLargestCrossover = 1024 * 1024;
template <class Seconds>
std::size_t find_crossover(const Seconds& small_seconds, const Seconds& large_seconds) {
  std::size_t crossover = 0;
  for (std::size_t bytes = 4 * 1024; bytes <= kLargestCrossover; bytes *= 2) {
    if (small_seconds(bytes) > large_seconds(bytes)) break;
    crossover = bytes;
  }
  return crossover;
}

// Of these two algorithms.
std::size_t measure_crossover(const World& world, SumAlgorithm& small, SumAlgorithm& large);

}  // namespace annulus
