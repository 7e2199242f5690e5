#include "src/data/open_samples.h"

#include <fmt/ranges.h>

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
    return root.has(split) && root.group(split).has("tokens") && !root.group(split).has("labels");
  });
} catch (const Error&) {
  return false;
}

// Throws Error if the files have other splits only.
void expect_split(const std::vector<std::filesystem::path>& files, const std::string& split) {
  std::vector<std::string> present;
  try {
    if (has_split(files, split)) return;
    for (const std::string other : {"train", "validation", "test"})
      if (has_split(files, other)) present.push_back(other);
  } catch (const Error&) {
    return;
  }
  if (present.empty()) return;
  fail("{}{}: no {} split, but {}{}", files.front().string(), files.size() > 1 ? " and the other data files" : "",
       split, fmt::join(present, " and "), split == "train" ? "" : " (see --split)");
}

}  // namespace

std::unique_ptr<Samples> open_samples(const std::vector<std::filesystem::path>& files, const std::string& split,
                                      std::size_t length, bool masked) {
  expect_split(files, split);
  if (has_text(files, split)) {
    auto text = std::make_unique<TokenDataset>(files, split, length > 0 ? length : kDefaultLength,
                                               masked ? Prediction::masked : Prediction::next);
    if (masked) text->expect_whole_windows();
    return text;
  }
  auto samples = std::make_unique<Dataset>(files, split);
  if (const DatasetInfo& info = samples->info(); info.is_text() && length > 0 && length != info.length)
    fail("--length {}: the labelled texts have {} tokens; remove the option", length, info.length);
  return samples;
}

}  // namespace annulus
