#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/io/file_descriptor.h"
#include "src/io/file_mapping.h"
#include "src/io/hdf5.h"

namespace annulus {

// A file that is read at any place, from any thread.
struct ReadableFile {
  explicit ReadableFile(const std::filesystem::path& file);
  std::filesystem::path path;
  FileDescriptor descriptor;
};

// A dataset of a data file, of which any part is read where it is asked for, from any thread, and nothing is kept in
// memory without being told. A contiguous one (HDF5's default) is read straight from the file: HDF5 has said where it
// lies, and is not asked again; pread(2) needs neither its lock nor a file position, and costs a fraction of a
// hyperslab, and mapped rows cost still less. Chunked and compressed ones are read through HDF5, slowly. All throw
// Error.
class StoredArray {
 public:
  // `file`: the data file, which is read unless the dataset lies behind an external link. Throws Error unless every
  // element is stored.
  StoredArray(hdf5::Dataset dataset, std::shared_ptr<const ReadableFile> file);

  std::size_t count() const { return count_; }  // of rows: its outermost dimension

  // Has its integers in memory from now on if they are contiguous and take `budget` bytes at most, which becomes less
  // by so much: a number of few bytes costs as much to read as a small image. Before it is read by several threads.
  void keep_integers(std::size_t& budget);
  // Has memory look for one of those, which will be read soon. Inlined, or GCC 12 takes it for a function that does
  // nothing, and drops the call.
  [[gnu::always_inline]] void begin_to_fetch(std::size_t row) const {
    if (!kept_.empty()) __builtin_prefetch(kept_.data() + row * row_bytes_);
  }

  // Has its rows mapped from now on if they are contiguous and the operating system can. Likewise.
  void map_rows();
  std::span<const std::uint8_t> mapped_rows() const { return mapping_.bytes(); }  // all of them, or none
  bool surely_whole() const { return mapping_.surely_whole(); }
  // Whether the file still holds them all. If not, those that were read while they were mapped may be wrong.
  bool whole() const;

  void read_bytes(std::size_t first, std::size_t count, std::span<std::uint8_t> values) const;  // rows of uint8
  void read_integers(std::size_t first, std::span<std::int64_t> values) const;  // of any type, a row each

  // Tells the operating system that these rows will be read soon.
  void will_need(std::size_t first, std::size_t count) const;

 private:
  std::shared_ptr<const ReadableFile> file_;
  std::size_t count_;
  std::uint64_t row_bytes_ = 0;
  std::uint64_t offset_ = 0;        // in the file, of a contiguous one
  bool has_sign_ = false;           // integers
  std::vector<std::uint8_t> kept_;  // all of them, as they are stored, or none
  FileMapping mapping_;
  std::optional<hdf5::Dataset> dataset_;  // another one
};

}  // namespace annulus
