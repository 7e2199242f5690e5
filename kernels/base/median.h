#pragma once

#include <algorithm>
#include <vector>

namespace annulus {

// Returns the median; of an even number of values, the lower of the two middle ones (so of two ranks, the earlier one).
// REQUIRES: values is not empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace annulus
