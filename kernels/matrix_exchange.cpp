#include "kernels/matrix_exchange.h"

#include <algorithm>
#include <numeric>

namespace annulus {

std::vector<std::vector<std::size_t>> share_by_cost(const std::vector<double>& costs, std::size_t ranks) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t item) { return costs[item]; });
  std::vector<std::vector<std::size_t>> shares(ranks);
  std::vector<double> loads(ranks);
  for (const std::size_t item : order) {
    const auto least = static_cast<std::size_t>(std::ranges::min_element(loads) - loads.begin());
    shares[least].push_back(item);
    loads[least] += costs[item];
  }
  return shares;
}

}  // namespace annulus
