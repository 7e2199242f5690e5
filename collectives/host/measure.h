#pragma once

#include <cstddef>
#include <span>

#include "collectives/all_reduce_algorithm.h"
#include "collectives/world/world.h"

namespace annulus {

// Measures algorithms on this machine, to choose between them. Takes milliseconds, or tenths of a second if ranks
// outnumber cores. Collective; the same result on every rank.

// Returns the seconds per all-reduce on the slowest rank: the median over a few trials, each with several all-reduces
// if they are short. Every rank rewrites the array before each all-reduce, as training does. Leaves zeros.
double all_reduce_seconds(const World& world, AllReduceAlgorithm& algorithm, std::span<float> values);

// Returns the largest size among `least`, 2 `least` ... `most`, in bytes, up to which small_seconds(bytes) is not more
// than large_seconds(bytes); 0 if it is more from the start.
constexpr std::size_t kLeastCrossover = 4 * 1024, kLargestCrossover = 1024 * 1024;
template <class Small, class Large>
std::size_t find_crossover(const Small& small_seconds, const Large& large_seconds, std::size_t least = kLeastCrossover,
                           std::size_t most = kLargestCrossover) {
  std::size_t crossover = 0;
  for (std::size_t bytes = least; bytes <= most; bytes *= 2) {
    if (small_seconds(bytes) > large_seconds(bytes)) break;
    crossover = bytes;
  }
  return crossover;
}

// find_crossover() for these two algorithms.
std::size_t measure_crossover(const World& world, AllReduceAlgorithm& small, AllReduceAlgorithm& large);

}  // namespace annulus
