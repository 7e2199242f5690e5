#include "collectives/measure.h"

#include <vector>

#include "kernels/clock.h"
#include "kernels/median.h"

namespace annulus {
namespace {

constexpr std::size_t kSmallest = 4 * 1024;
constexpr std::size_t kLargest = 1024 * 1024;
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
  std::vector<float> values(kLargest / sizeof(float));
  std::size_t crossover = 0;
  for (std::size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    const auto some = std::span(values).first(bytes / sizeof(float));
    if (seconds_of_sum(world, small, some) > seconds_of_sum(world, large, some)) break;
    crossover = bytes;
  }
  return crossover;
}

}  // namespace annulus
