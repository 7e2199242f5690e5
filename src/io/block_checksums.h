#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/io/file_descriptor.h"
#include "src/io/file_mapping.h"

namespace annulus {

// Checksums for a data file, stored behind the end of file that HDF5 knows (src/data/FORMAT.md): an XXH3 hash for each
// block of kBlockBytes in the file. HDF5 ignores them, and removes them when it changes the file.

struct ByteRange {
  std::uint64_t begin = 0, end = 0;

  std::uint64_t size() const { return end - begin; }
};

// A part of a file that is mapped into memory, or nothing.
struct MappedRange {
  std::uint64_t begin = 0;  // in the file
  std::span<const std::uint8_t> bytes;
};

class BlockChecksums {
 public:
  static constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 14;

  // Returns the file's checksums; none if it has none.
  static std::optional<BlockChecksums> find(const FileDescriptor& descriptor, const std::filesystem::path& file);

  // Throws Error naming the bytes, but not the file, if a block with some of these bytes differs from the checksum.
  // Hashes each block once: in place if it lies in `mapped`, else after reading it. Thread-safe. REQUIRES: both
  // descriptors are open on the same file.
  void check(const FileDescriptor& descriptor, const ByteRange& bytes, const MappedRange& mapped = {}) const;
  // Checks all blocks except those within large arrays. Throws Error naming the file as well.
  void check_structure(const FileDescriptor& descriptor) const;

 private:
  BlockChecksums(const FileDescriptor& descriptor, std::filesystem::path file, std::uint64_t bytes,
                 std::vector<ByteRange> elements);
  bool checked(std::uint64_t block) const;
  void check_blocks(const FileDescriptor& descriptor, const ByteRange& blocks, const MappedRange& mapped) const;
  void read_stored(const FileDescriptor& descriptor, const ByteRange& blocks, std::span<std::uint64_t> hashes) const;

  std::filesystem::path file_;
  std::uint64_t bytes_;                                    // file size without the checksums
  FileMapping stored_;                                     // the checksums
  std::vector<ByteRange> elements_;                        // ascending
  std::unique_ptr<std::atomic<std::uint64_t>[]> checked_;  // a bit for each block
};

// Adds checksums to a file: all block hashes, in any order and from any process, then the end. `bytes`: file size
// without checksums.
std::uint64_t blocks_of(std::uint64_t bytes);
void write_checksums(const std::filesystem::path& file, std::uint64_t bytes, const ByteRange& blocks);
// `elements`: large arrays, whose blocks are checked when they are read; all other blocks are checked when the file is
// opened.
void end_checksums(const std::filesystem::path& file, std::uint64_t bytes, std::vector<ByteRange> elements);

}  // namespace annulus
