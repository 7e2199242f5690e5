#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/data/samples.h"

namespace annulus {

// Opens a split with images, labelled texts (both Dataset) or text (TokenDataset), as stored in the files. Of text:
// `length`: tokens in a window, 0: kDefaultLength, or those of a labelled text; `masked`: masked tokens are predicted,
// not each next token. Throws Error.
std::unique_ptr<Samples> open_samples(const std::vector<std::filesystem::path>& files, const std::string& split,
                                      std::size_t length, bool masked = false);

}  // namespace annulus
