#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "src/io/file_descriptor.h"

namespace annulus {

// A file that others read while it grows. All throw Error.
class GrowingFile {
 public:
  explicit GrowingFile(const std::filesystem::path& file);  // goes on at the end of one that is there, which is no link

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }

  void append(std::string_view bytes);  // all of them, or where that fails none
  void cut(std::uint64_t size);

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  std::uint64_t size_;
};

// The step that a line is of; none where it is no such line.
using StepOf = std::function<std::optional<std::uint64_t>(std::string_view line)>;

// Of a file of lines whose steps ascend, leaves those up to `step`. What comes later was written by a run that ended
// before it had a checkpoint of it, and the last line may be half of one.
void keep_lines_until(GrowingFile& file, std::uint64_t step, const StepOf& step_of);

}  // namespace annulus
