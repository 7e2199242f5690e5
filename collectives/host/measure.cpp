#include "collectives/host/measure.h"

#include <algorithm>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/median.h"

namespace annulus {
namespace {

constexpr int kTries = 7;
constexpr double kTrySeconds = 200e-6;  // for short all-reduces
constexpr double kMostCalls = 20;

}  // namespace

double all_reduce_seconds(const World& world, AllReduceAlgorithm& algorithm, std::span<float> values) {
  const auto seconds_of_try = [&](int calls) {
    world.barrier();
    double seconds = 0;
    for (int i = 0; i < calls; ++i) {
      std::ranges::fill(values, 0.0f);
      const double begun = now_seconds();
      algorithm.all_reduce(values);
      seconds += now_seconds() - begun;
    }
    return seconds / calls;
  };
  seconds_of_try(1);  // the first call allocates memory and opens connections
  double once = seconds_of_try(1);
  world.maximum({&once, 1});
  const auto calls = static_cast<int>(std::clamp(kTrySeconds / once, 1.0, kMostCalls));
  std::vector<double> tries(kTries);
  for (double& seconds : tries) seconds = seconds_of_try(calls);
  world.maximum(tries);
  return median(tries);
}

std::size_t measure_crossover(const World& world, AllReduceAlgorithm& small, AllReduceAlgorithm& large) {
  std::vector<float> values(kLargestCrossover / sizeof(float));
  const auto seconds_of = [&](AllReduceAlgorithm& algorithm) {
    return [&](std::size_t bytes) {
      return all_reduce_seconds(world, algorithm, std::span(values).first(bytes / sizeof(float)));
    };
  };
  return find_crossover(seconds_of(small), seconds_of(large));
}

}  // namespace annulus
