#pragma once

#include <archive.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "src/io/file_descriptor.h"

namespace annulus {

// What is wrong with an archive; which one, the caller knows.
class ArchiveError : public Error {
 public:
  using Error::Error;
};

// A tar archive, plain or compressed with gzip or zstd, read from its begin to its end by libarchive. Throws
// ArchiveError, also if the file cannot be opened.
class ArchiveReader {
 public:
  explicit ArchiveReader(const std::filesystem::path& file);

  bool next();  // to the next member that is no folder; false at the end

  // Of the member that it is at.
  const std::string& name() const { return name_; }
  bool is_file() const { return is_file_; }     // else a link, a device or a named pipe, which holds nothing
  std::uint64_t size() const { return size_; }  // in bytes, as its header promises
  void read(std::vector<std::uint8_t>& bytes);  // all of it, once

 private:
  struct Free {
    void operator()(archive* reader) const { archive_read_free(reader); }
  };
  void check(int result) const;
  [[noreturn]] void fail_for_its_reason() const;

  FileDescriptor file_;  // outlives the reader
  std::unique_ptr<archive, Free> reader_;
  std::string name_;
  bool is_file_ = false;
  std::uint64_t size_ = 0;
};

}  // namespace annulus
