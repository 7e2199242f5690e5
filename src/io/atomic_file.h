#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "src/io/file_descriptor.h"

namespace annulus {

// Creates or replaces a file atomically: the content is written to "<file>.partial" in the same folder, flushed to the
// disk and renamed, and the folder is flushed as well. At every instant, even in a power cut, `file` has either the old
// or the new content. REQUIRES: a single writer at a time. The next writer removes what a killed writer left behind; if
// that is a symbolic link, the link and not the target. The destructor discards content that was not committed and
// leaves `file` untouched. All functions throw Error (no such folder, no permission, a full disk).
class AtomicFile {
 public:
  static std::filesystem::path partial(const std::filesystem::path& file);  // the name until commit()

  explicit AtomicFile(const std::filesystem::path& file);
  AtomicFile(AtomicFile&& other) noexcept;
  ~AtomicFile();

  const FileDescriptor& descriptor() const { return descriptor_; }
  void write_at(std::uint64_t position, std::span<const std::uint8_t> bytes);
  void write(std::span<const std::byte> content);  // all bytes
  void reserve(std::uint64_t bytes);  // extends the file to this size, so that a later lack of space is an error now
  void commit();

 private:
  std::filesystem::path file_, partial_;  // `partial_` is empty after commit()
  FileDescriptor descriptor_;
};

// Creates or replaces `file` with `content` through an AtomicFile.
void write_atomically(const std::filesystem::path& file, std::span<const std::byte> content);

}  // namespace annulus
