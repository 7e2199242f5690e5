#pragma once

#include <algorithm>
#include <vector>

namespace annulus {

// Returns the median; for an even number of values, the lower of the two middle ones (so between two ranks, the
// earlier). REQUIRES: values is not empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace annulus
