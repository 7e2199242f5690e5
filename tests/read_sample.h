#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/error.h"
#include "src/data/sample_reader.h"

namespace annulus::test {

// Reads a single sample into `pixels`, and returns the label. Throws Error if the sample is bad.
inline std::int32_t read_sample(SampleReader& reader, std::size_t sample, std::uint64_t key,
                                std::span<std::uint8_t> pixels) {
  std::int32_t label = 0;
  const auto rethrow = [](std::size_t, std::size_t, const Error& error) -> bool { throw Error(error); };
  reader.read({{&sample, 1}, {&key, 1}, pixels, {&label, 1}, {}}, rethrow);
  return label;
}

}  // namespace annulus::test
