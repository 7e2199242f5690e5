#include "kernels/tensor.h"

#include <fmt/ranges.h>

#include <functional>
#include <numeric>

namespace annulus {

std::size_t elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>{});
}

std::string to_string(const Shape& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace annulus
