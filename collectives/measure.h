#pragma once

#include <cstddef>
#include <span>

#include "collectives/sum_algorithm.h"
#include "collectives/world.h"

namespace annulus {

// What algorithms take here, for choosing between them. Takes some milliseconds. Collective; the same on every rank.

// The median of a few sums of these arrays, on the slowest rank.
double seconds_of_sum(const World& world, SumAlgorithm& algorithm, std::span<float> values);

// The largest of a few sizes up to which `small` is not slower than `large`, in bytes; 0 where it never is.
std::size_t measure_crossover(const World& world, SumAlgorithm& small, SumAlgorithm& large);

}  // namespace annulus
