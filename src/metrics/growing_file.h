#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "src/io/file_descriptor.h"

namespace annulus {

// An append-only file that others may read meanwhile. All functions throw Error.
class GrowingFile {
 public:
  // Appends to an existing file. Throws Error if it is a symbolic link.
  explicit GrowingFile(const std::filesystem::path& file);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  void append(std::string_view bytes);  // appends all bytes, or none if that fails
  void cut(std::uint64_t size);

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  std::uint64_t size_;
};

// Returns a line's step; nothing if the line has none.
using StepOf = std::function<std::optional<std::uint64_t>(std::string_view line)>;

// Cuts off the lines after `step`. REQUIRES: steps ascend. Later lines were written by a run that ended before it wrote
// a checkpoint for their steps; the last line may be incomplete.
void keep_lines_until(GrowingFile& file, std::uint64_t step, const StepOf& step_of);

}  // namespace annulus
