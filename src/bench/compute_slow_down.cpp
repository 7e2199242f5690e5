#include "src/bench/compute_slow_down.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/median.h"

namespace annulus {
namespace {

constexpr double kConfidence = 0.95;

double median_of(std::span<const double> values) {
  return median({values.begin(), values.end()});
}

// Returns the largest k for which the k-th smallest and the k-th largest value enclose the median with
// kConfidence, for any distribution: fewer than k values are on one side with a binomial probability. 0: too few.
std::size_t enclosing_rank(std::size_t count) {
  const auto n = static_cast<double>(count);
  double outside = 0;
  for (std::size_t k = 0;; ++k) {
    const auto i = static_cast<double>(k);
    outside += 2 * std::exp(std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) - n * std::log(2));
    if (outside > 1 - kConfidence) return k;
  }
}

}  // namespace

std::string compute_slow_down(std::span<const double> alone, std::span<const double> beside, std::size_t steps_per_turn,
                              const std::string& name) {
  std::vector<double> percents;
  for (std::size_t begin = 0; begin < alone.size(); begin += steps_per_turn)
    percents.push_back(
        100 * (median_of(beside.subspan(begin, steps_per_turn)) / median_of(alone.subspan(begin, steps_per_turn)) - 1));
  std::ranges::sort(percents);
  const std::size_t rank = enclosing_rank(percents.size());
  std::string change = "too few turns to compare, raise --seconds";
  if (rank > 0) {
    const double low = percents[rank - 1], high = percents[percents.size() - rank], middle = median(percents);
    change = low > 0    ? fmt::format("{:.1f} % slower [{:.1f}, {:.1f}]", middle, low, high)
             : high < 0 ? fmt::format("{:.1f} % faster [{:.1f}, {:.1f}]", -middle, -high, -low)
                        : fmt::format("no significant difference [{:.1f}, {:.1f}]", low, high);
  }
  return fmt::format("compute {:.3f} -> {:.3f} ms beside {}: {}", 1e3 * median_of(alone), 1e3 * median_of(beside), name,
                     change);
}

}  // namespace annulus
