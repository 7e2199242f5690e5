#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "src/io/file_descriptor.h"

namespace annulus {

// A file that is made or replaced as a whole: its content goes to "<file>.partial" in the same folder, is flushed to
// the disk and renamed, and the folder is flushed as well. At every instant, a power cut included, `file` is either
// what it was or the new content. One writer at a time; what a killed one left behind is removed by the next, a
// symbolic link in its place as well, not what it points to. All throw Error (no such folder, no permission, a full
// disk). What was not committed is gone with this, and `file` untouched.
class AtomicFile {
 public:
  static std::filesystem::path partial(const std::filesystem::path& file);  // where the content is until then

  explicit AtomicFile(const std::filesystem::path& file);
  AtomicFile(AtomicFile&& other) noexcept;
  ~AtomicFile();

  const FileDescriptor& descriptor() const { return descriptor_; }
  void write_at(std::uint64_t position, std::span<const std::uint8_t> bytes);
  void write(std::span<const std::byte> content);  // all of it
  void commit();

 private:
  std::filesystem::path file_, partial_;  // `partial_` is empty once it was committed
  FileDescriptor descriptor_;
};

// The same for a content that is there already.
void write_atomically(const std::filesystem::path& file, std::span<const std::byte> content);

}  // namespace annulus
