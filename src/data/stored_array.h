#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/io/block_checksums.h"
#include "src/io/file_descriptor.h"
#include "src/io/file_mapping.h"
#include "src/io/hdf5.h"

namespace annulus {

// A file that is read at any offset, from any thread.
struct ReadableFile {
  explicit ReadableFile(const std::filesystem::path& file);
  std::filesystem::path path;
  FileDescriptor descriptor;
  std::optional<BlockChecksums> checksums;
};

// A dataset of a data file, any part of which is read on demand, from any thread; nothing is kept in memory unless
// requested. A contiguous dataset (HDF5's default) is read straight from the file, at the offset that HDF5 reported
// once: pread(2) needs neither HDF5's lock nor a file position, and costs a fraction of a hyperslab, and mapped rows
// cost still less. Chunked and compressed ones are read through HDF5, slowly. All functions throw Error.
class StoredArray {
 public:
  // `file`: the data file, which is read unless the dataset is behind an external link. Throws Error unless every
  // element is stored.
  StoredArray(hdf5::Dataset dataset, std::shared_ptr<const ReadableFile> file);

  std::size_t count() const { return count_; }  // number of rows: its outermost dimension

  // Keeps its elements in memory from now on if they are contiguous and take at most `budget` bytes, which is reduced
  // accordingly: reading an integer of a few bytes costs as much as reading a small image. To be called before several
  // threads read.
  void keep(std::size_t& budget);
  // Prefetches a row. Inlined, because GCC 12 otherwise takes it for a function without effect and
  // drops the call.
  [[gnu::always_inline]] void begin_to_fetch(std::size_t row) const {
    if (!kept_.empty()) __builtin_prefetch(kept_.data() + row * row_bytes_);
  }

  // Maps its rows into memory if they are contiguous and the operating system supports it. To be called before several
  // threads read.
  void map_rows();
  std::span<const std::uint8_t> mapped_rows() const { return mapping_.bytes(); }  // all of them, or none
  bool surely_whole() const { return mapping_.surely_whole(); }
  // Returns whether the file still contains all mapped rows. If not, rows that were read while mapped may be wrong.
  bool whole() const;

  void read_bytes(std::size_t first, std::size_t count, std::span<std::uint8_t> values) const;  // rows of uint8
  void read_floats(std::size_t row, std::span<float> values) const;                             // a row of float32
  void read_integers(std::size_t first, std::span<std::int64_t> values) const;  // rows of any integer type

  // Throws Error if these rows are damaged according to the file's checksums. Others of these functions call it, except
  // for mapped rows.
  void check(std::size_t first, std::size_t count) const {
    if (file_->checksums && !dataset_)
      file_->checksums->check(file_->descriptor, {offset_ + first * row_bytes_, offset_ + (first + count) * row_bytes_},
                              {offset_, mapping_.bytes()});
  }

  // Announces to the operating system that these rows will be read soon.
  void will_need(std::size_t first, std::size_t count) const;

 private:
  void read_contiguous(std::size_t first, std::span<std::uint8_t> rows) const;

  std::shared_ptr<const ReadableFile> file_;
  std::size_t count_;
  std::size_t row_values_ = 0;
  std::uint64_t row_bytes_ = 0, value_bytes_ = 0;
  std::uint64_t offset_ = 0;        // in the file, if contiguous
  bool has_sign_ = false;           // integers
  std::vector<std::uint8_t> kept_;  // all elements, as stored, or none
  FileMapping mapping_;
  std::optional<hdf5::Dataset> dataset_;  // if not contiguous
};

}  // namespace annulus
