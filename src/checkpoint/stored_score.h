#pragma once

#include <optional>

#include "src/io/hdf5.h"
#include "src/step/score.h"

namespace annulus {

// A score as a checkpoint's attributes, all integers: "count", and for each measure the sample count if it is counted,
// else the value's bits (see MeasureInfo::attribute).
void write_stored_score(hdf5::Group& root, const Score& score);

// Returns none if there is none. Throws Error if attributes are missing.
std::optional<Score> read_stored_score(const hdf5::Group& root);

}  // namespace annulus
