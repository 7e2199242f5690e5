#include "src/data/open_samples.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "src/data/data_options.h"
#include "src/data/dataset.h"
#include "src/data/token_dataset.h"
#include "src/io/hdf5.h"

namespace annulus {
namespace {

// If a file cannot be opened, the data set reports it.
bool has_text(const std::vector<std::filesystem::path>& files, const std::string& split) try {
  return std::ranges::any_of(files, [&](const std::filesystem::path& file) {
    const hdf5::Group root = hdf5::File(file).root();
    return root.has(split) && root.group(split).has("tokens");
  });
} catch (const Error&) {
  return false;
}

}  // namespace

std::unique_ptr<Samples> open_samples(const std::vector<std::filesystem::path>& files, const std::string& split,
                                      std::size_t length) {
  if (has_text(files, split)) return std::make_unique<TokenDataset>(files, split, length > 0 ? length : kDefaultLength);
  return std::make_unique<Dataset>(files, split);
}

}  // namespace annulus
