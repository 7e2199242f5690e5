#pragma once

#include <algorithm>
#include <vector>

namespace annulus {

// The middle one; of an even number the lower of the two (of two ranks, the earlier one). There must be one.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace annulus
