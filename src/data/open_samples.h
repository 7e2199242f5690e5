#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/data/samples.h"

namespace annulus {

// Opens one split of a data set of images (Dataset) or of text (TokenDataset), as the files are. `length`: the tokens
// of a window of text; 0: kDefaultLength. Throws Error.
std::unique_ptr<Samples> open_samples(const std::vector<std::filesystem::path>& files, const std::string& split,
                                      std::size_t length);

}  // namespace annulus
