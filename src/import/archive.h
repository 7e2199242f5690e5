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

// Describes an archive's problem, without naming the archive.
class ArchiveError : public Error {
 public:
  using Error::Error;
};

// Reads a tar archive, plain or compressed with gzip or zstd, sequentially with libarchive. All functions throw
// ArchiveError, the constructor if the file cannot be opened.
class ArchiveReader {
 public:
  explicit ArchiveReader(const std::filesystem::path& file);

  bool next();  // advances to the next member that is not a folder; returns false at the end

  // The current member.
  const std::string& name() const { return name_; }
  bool is_file() const { return is_file_; }     // otherwise a link, a device or a named pipe, without content
  std::uint64_t size() const { return size_; }  // in bytes, according to the header
  void read(std::vector<std::uint8_t>& bytes);  // reads all bytes; REQUIRES: called at most once per member

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
