#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/data/samples.h"

namespace annulus {

// Opens a split with images (Dataset) or text (TokenDataset), as stored in the files. `length`: tokens predicted in a
// text window; 0: kDefaultLength. Throws Error.
std::unique_ptr<Samples> open_samples(const std::vector<std::filesystem::path>& files, const std::string& split,
                                      std::size_t length);

}  // namespace annulus
