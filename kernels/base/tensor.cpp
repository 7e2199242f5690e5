#include "kernels/base/tensor.h"

#include <fmt/ranges.h>

#include <functional>
#include <numeric>

namespace annulus {

std::size_t elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>{});
}

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::f32:
    case DataType::i32:
      return 4;
    case DataType::f16:
    case DataType::bf16:
      return 2;
    case DataType::u8:
      return 1;
  }
  return 0;
}

std::string to_string(const Shape& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace annulus
