#include "src/import/source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "kernels/base/error.h"

namespace annulus {

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
