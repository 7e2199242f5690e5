#include "src/import/source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "src/import/split_folders.h"

namespace annulus {
namespace {

// Endings of files that scripts/import-arrays reads, and the script's name for the format.
constexpr std::pair<std::string_view, std::string_view> kArrays[] = {{"-ubyte", "idx"},
                                                                     {"-ubyte.gz", "idx"},
                                                                     {"_batch.bin", "cifar"},
                                                                     {"_batch_1.bin", "cifar"},
                                                                     {"fine_label_names.txt", "cifar"},
                                                                     {".npy", "npy"},
                                                                     {".npz", "npy"},
                                                                     {".parquet", "parquet"},
                                                                     {".arrow", "parquet"},
                                                                     {".h5", "hdf5"},
                                                                     {".hdf5", "hdf5"}};

// Throws Error naming the script that reads arrays, if the source has files of them.
void expect_no_arrays(const std::filesystem::path& source) {
  for (const auto& [array_ending, name] : kArrays) {
    const std::string_view ending = array_ending;  // clang 14 captures no structured binding
    const auto has_ending = [ending](const std::filesystem::path& file) { return file.string().ends_with(ending); };
    if (std::filesystem::is_directory(source) ? any_file_in(source, has_ending) : has_ending(source))
      fail("{}: *{}: read by scripts/import-arrays FILE SOURCE --from {}", source.string(), ending, name);
  }
}

}  // namespace

std::span<const SourceFormat* const> source_formats() {
  static const std::array formats{&kFolderSource, &kTarSource, &kTextSource};
  return formats;
}

const SourceFormat& source_format(const std::string& name) {
  std::vector<std::string> known;
  for (const SourceFormat* format : source_formats()) {
    if (format->name == name) return *format;
    known.push_back(format->name);
  }
  fail("unknown format '{}'; known formats: {}", name, fmt::join(known, ", "));
}

bool any_file_in(const std::filesystem::path& folder, const std::function<bool(const std::filesystem::path&)>& found) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::recursive_directory_iterator entries(
      folder, fs::directory_options::skip_permission_denied | fs::directory_options::follow_directory_symlink, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    constexpr int kDeepest = 8;  // links may form a circle
    if (entries.depth() >= kDeepest) entries.disable_recursion_pending();
    std::error_code none;
    if (is_hidden(entries->path()))
      entries.disable_recursion_pending();
    else if (entries->is_regular_file(none) && found(entries->path()))
      return true;
  }
  return false;
}

const SourceFormat& recognized_format(const std::filesystem::path& source) {
  if (!std::filesystem::exists(source)) fail("{}: no such file or folder", source.string());
  for (const SourceFormat* format : source_formats()) {
    if (format == &kTextSource) expect_no_arrays(source);  // which may have notes beside them
    if (format->recognizes(source)) return *format;
  }
  std::string example;
  any_file_in(source, [&example](const std::filesystem::path& file) {
    example = file.filename().string();
    return true;
  });
  fail("{}: has neither images, archives nor text{}; --from names a format", source.string(),
       !std::filesystem::is_directory(source) ? ""
       : example.empty()                      ? ": it is empty"
                                              : ", but " + example);
}

void add_facts(Hash& hash, const std::filesystem::path& file) {
  std::error_code none;  // on errors the functions return special values
  const std::string facts = fmt::format("{}\n{}\n{}\n", file.string(), std::filesystem::file_size(file, none),
                                        std::filesystem::last_write_time(file, none).time_since_epoch().count());
  hash.add(std::span<const char>(facts));
}

std::string fingerprint_of(std::span<const std::filesystem::path> files) {
  Hash hash;
  for (const std::filesystem::path& file : files) add_facts(hash, file);
  return hash.text();
}

}  // namespace annulus
