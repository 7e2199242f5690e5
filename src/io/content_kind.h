#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace annulus {

// Files that people give as a network or as weights.
enum class ContentKind {
  other,
  empty,
  git_lfs_pointer,
  web_page,
  zip,
  pickle,
  safetensors,
  hdf5,
  gzip,
  npy,
  gguf,
  json
};

// Recognizes a file by the bytes that beginning() returns.
ContentKind content_kind(std::string_view begin);

// Returns the first 512 bytes, or all if there are fewer. Throws Error if the file cannot be read.
std::string beginning(const std::filesystem::path& file);

}  // namespace annulus
