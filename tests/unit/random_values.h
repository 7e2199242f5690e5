#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/random.h"

namespace annulus::test {

// Between -1 and 1, and never quite 0.
inline std::vector<float> random_values(std::size_t size, std::uint64_t seed) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = 2 * (static_cast<float>(mix(seed, i) >> 41) + 0.5f) * 0x1p-23f - 1;
  return values;
}

inline std::vector<std::uint8_t> random_pixels(std::size_t size, std::uint64_t seed) {
  std::vector<std::uint8_t> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<std::uint8_t>(mix(seed, i) >> 56);
  return values;
}

inline std::vector<std::int32_t> random_labels(std::size_t size, std::uint64_t classes, std::uint64_t seed) {
  std::vector<std::int32_t> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<std::int32_t>(mix(seed, i) % classes);
  return values;
}

}  // namespace annulus::test
