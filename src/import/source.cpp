#include "src/import/source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "kernels/base/error.h"
#include "src/io/checked_product.h"

namespace annulus {

std::span<const SourceFormat* const> source_formats() {
  static const std::array formats{&kFolderSource, &kTarSource, &kIdxSource, &kCifarSource, &kNpySource, &kTextSource};
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

PixelShape checked_shape(const std::filesystem::path& file, std::size_t height, std::size_t width,
                         std::size_t channels) {
  const auto bytes = checked_product(std::array{height, width, channels});
  if (!bytes || *bytes == 0 || *bytes > kMostImageBytes) {
    fail("{}: images of {}x{}x{} bytes; supported are 1 to {} bytes", file.string(), height, width, channels,
         kMostImageBytes);
  }
  if (channels != 1 && channels != 3) {
    fail("{}: images of {} channels; supported are 1 or 3", file.string(), channels);
  }
  return {{height, width}, channels};
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
