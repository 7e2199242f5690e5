#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/random.h"
#include "src/io/hdf5.h"

namespace annulus::test {

// The values of a parameter that follow from the attributes of its dataset, see tests/data/make_reference.py.
inline std::vector<float> formula(const hdf5::Dataset& set, std::size_t size) {
  const std::uint64_t index = set.integer("index");
  const double center = set.floats("center")[0], bound = set.floats("bound")[0], push = set.floats("push")[0];
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    const double u = static_cast<double>(mix((index << 32) + i) >> 40) * 0x1p-24;
    values[i] = static_cast<float>(center + bound * (2 * u - 1) + (i % 2 == 0 ? push : -push));
  }
  return values;
}

}  // namespace annulus::test
