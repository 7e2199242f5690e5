#pragma once

#include <cstdint>
#include <limits>

#include "src/data/samples.h"
#include "src/io/hdf5.h"

namespace annulus {

constexpr std::uint64_t kMostTokens = std::numeric_limits<std::int32_t>::max();

// Reads a text file's attributes: vocabulary, mask token and tokenizer. Throws Error.
void read_vocabulary(const hdf5::Group& root, DatasetInfo& info);

}  // namespace annulus
