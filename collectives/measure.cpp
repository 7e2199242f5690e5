#include "collectives/measure.h"

#include <algorithm>
#include <vector>

#include "kernels/clock.h"
#include "kernels/median.h"

namespace annulus {
namespace {

constexpr int kTries = 7;

// The median of a few tries of `work`, on the slowest rank.
template <class Work>
double seconds_of(const World& world, const Work& work) {
  work();  // the first time memory is made and connections are opened
  std::vector<double> tries(kTries);
  for (double& seconds : tries) {
    world.barrier();
    const double begun = now_seconds();
    work();
    seconds = now_seconds() - begun;
  }
  world.maximum(tries);
  return median(tries);
}

}  // namespace

double seconds_of_sum(const World& world, SumAlgorithm& algorithm, std::span<float> values) {
  return seconds_of(world, [&] { algorithm.sum(values); });
}

double seconds_of_rewritten_sum(const World& world, SumAlgorithm& algorithm, std::span<float> values) {
  constexpr int sums = 20;
  return seconds_of(world,
                    [&] {
                      for (int i = 0; i < sums; ++i) {
                        std::ranges::fill(values, 0.0f);
                        algorithm.sum(values);
                      }
                    }) /
         sums;
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
