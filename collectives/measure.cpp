#include "collectives/measure.h"

#include <vector>

#include "kernels/clock.h"
#include "kernels/median.h"

namespace annulus {
namespace {

constexpr int kTries = 7;

}  // namespace

double seconds_of_sum(const World& world, SumAlgorithm& algorithm, std::span<float> values) {
  algorithm.sum(values);  // the first time memory is made and connections are opened
  std::vector<double> tries(kTries);
  for (double& seconds : tries) {
    world.barrier();
    const double begun = now_seconds();
    algorithm.sum(values);
    seconds = now_seconds() - begun;
  }
  world.maximum(tries);
  return median(tries);
}

std::size_t measure_crossover(const World& world, SumAlgorithm& small, SumAlgorithm& large) {
  std::vector<float> values(kLargestCrossover / sizeof(float));
  const auto seconds_of = [&](SumAlgorithm& algorithm) {
    return [&](std::size_t bytes) {
      return seconds_of_sum(world, algorithm, std::span(values).first(bytes / sizeof(float)));
    };
  };
  return find_crossover(seconds_of(small), seconds_of(large));
}

}  // namespace annulus
