#pragma once

#include <optional>

#include "src/io/hdf5.h"
#include "src/step/score.h"

namespace annulus {

// A score as attributes of a checkpoint, all integers: "count", and of each measure the number of samples if it is
// counted, else the bits of the value (see MeasureInfo::attribute).
void write_stored_score(hdf5::Group& root, const Score& score);

// Returns none if there is none. Throws Error if attributes are missing.
std::optional<Score> read_stored_score(const hdf5::Group& root);

}  // namespace annulus
