#pragma once

#include <archive.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/error.h"

namespace annulus {

// What is wrong with an archive; which one, the caller knows.
class ArchiveError : public Error {
 public:
  using Error::Error;
};

// A tar archive, plain or compressed with gzip or zstd, read from its begin to its end by libarchive. Throws
// ArchiveError.
class ArchiveReader {
 public:
  explicit ArchiveReader(const std::filesystem::path& file);

  bool next();  // to the next member that is a file; false at the end

  // Of the member that it is at.
  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }  // in bytes, as its header promises
  void read(std::vector<std::uint8_t>& bytes);  // all of it, once

 private:
  struct Free {
    void operator()(archive* reader) const { archive_read_free(reader); }
  };
  void check(int result) const;
  [[noreturn]] void fail_for_its_reason() const;

  std::unique_ptr<archive, Free> reader_;
  std::string name_;
  std::uint64_t size_ = 0;
};

}  // namespace annulus
