#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/tensor.h"
#include "src/io/block_checksums.h"

// The part of HDF5 that data files and checkpoints need. Failures are thrown as Error, with the file, the object, and
// HDF5's innermost cause. Any thread may use any object if thread_safe(): Debian's HDF5 has an internal lock.
namespace annulus::hdf5 {

std::string version();  // the library's
bool thread_safe();

// Owns an HDF5 identifier.
template <herr_t (*close)(hid_t)>
class Handle {
 public:
  explicit Handle(hid_t id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) close(id_);
  }

  hid_t id() const { return id_; }

 private:
  hid_t id_;
};

using Properties = Handle<H5Pclose>;

// A group or a dataset: has a place in a file, and attributes.
class Object {
 public:
  Object(hid_t id, std::string place) : handle_(id), place_(std::move(place)) {}

  const std::string& place() const { return place_; }  // "data.h5: /train/images", for errors

  bool has_attribute(const std::string& name) const;
  std::string string(const std::string& attribute) const;
  std::vector<std::string> strings(const std::string& attribute) const;
  std::vector<float> floats(const std::string& attribute) const;
  std::uint64_t integer(const std::string& attribute) const;

  void set_string(const std::string& attribute, const std::string& value);
  void set_strings(const std::string& attribute, std::span<const std::string> values);
  void set_floats(const std::string& attribute, std::span<const float> values);
  void set_integer(const std::string& attribute, std::uint64_t value);

 protected:
  hid_t id() const { return handle_.id(); }

 private:
  Handle<H5Oclose> handle_;
  std::string place_;
};

class Dataset : public Object {
 public:
  using Object::Object;

  Shape shape() const;

  template <class T>
  bool holds() const;  // exactly T, so that reading converts nothing

  bool holds_integers() const;  // with any size

  // The integers' format in the file; none if the elements are not integers with 1, 2, 4 or 8 bytes, or differ from
  // this machine's byte order. Throws Error if they have more than 8 bytes.
  struct IntegerForm {
    std::size_t bytes;
    bool has_sign;
  };
  std::optional<IntegerForm> integer_form() const;

  // Reads all elements, row-major. Converts between integer types, and between float types; throws Error for integers
  // as floats or floats as integers.
  template <class T>
  std::vector<T> read() const;

  // Reads `count` elements in the outermost dimension, starting at `first`; converts like read().
  template <class T>
  void read_rows(std::size_t first, std::size_t count, std::span<T> values) const;

  // Throws Error unless the file contains every element in the shape. Detects datasets that were never written, sizes
  // beyond the file's or the address space, and elements in other files (virtual datasets, external storage).
  void require_stored() const;

  // Returns the name of the file that contains the dataset, which differs from the opened file behind an external link.
  std::string file() const;

  // Returns the elements' offset in file(), row-major; none if they are chunked or compressed.
  std::optional<std::uint64_t> offset() const;

  // Returns the file's parts that hold the elements: a single part, or the chunks.
  std::vector<ByteRange> ranges() const;

  // Returns the chunks' offsets. REQUIRES: each has `rows` elements in the outermost dimension and all in the others.
  std::vector<std::uint64_t> chunks(std::size_t rows) const;

  // Computes all chunks' checksums from their bytes. `go_on` is called after each chunk with the chunk's size and may
  // return false to stop. REQUIRES: bytes, in chunks as for chunks().
  void renew_checksums(const std::function<bool(std::size_t bytes)>& go_on);

 private:
  Shape chunk_shape() const;

  // Selects `count` elements in the outermost dimension.
  struct Rows {
    Handle<H5Sclose> in_file, in_memory;
  };
  Rows rows(std::size_t first, std::size_t count) const;

  std::uint64_t file_bytes() const;
  void require_contiguous_stored(std::uint64_t bytes) const;
  void require_chunks_stored() const;
};

class Group : public Object {
 public:
  using Object::Object;

  bool has(const std::string& name) const;
  std::vector<std::string> names() const;  // in creation order if the file records it, else by name
  Group group(const std::string& name) const;
  Dataset dataset(const std::string& name) const;

  Group create_group(const std::string& name);
  template <class T>
  void write(const std::string& name, const Shape& shape, std::span<const T> values);

  // Creates a contiguous dataset whose elements are written elsewhere. Returns their offset in the file, row-major.
  template <class T>
  std::uint64_t reserve(const std::string& name, const Shape& shape);

  // Creates a dataset in chunks of `rows` elements in the outermost dimension, each with a checksum, which is wrong
  // until Dataset::renew_checksums(). Returns each chunk's offset. HDF5 writes zeros everywhere, which remain after the
  // last chunk's elements. It searches all chunks for each chunk, so there should be no more than kMostChunks.
  template <class T>
  std::vector<std::uint64_t> reserve_chunks(const std::string& name, const Shape& shape, std::size_t rows);
  static constexpr std::size_t kMostChunks = 10000;

 private:
  template <class T>
  Dataset create(const std::string& name, const Shape& shape, const Properties& properties);
  std::string place_of(const std::string& name) const;
  void require(const std::string& name) const;
};

// A file opened for reading, without file locks: they fail on NFS and Lustre mounts, and a data file does not change.
class File {
 public:
  explicit File(const std::filesystem::path& path);
  Group root() const;

 private:
  std::string path_;
  Handle<H5Fclose> handle_;
};

// A new file, built in memory. HDF5 1.10 can neither close nor forget a file that it failed to write (a full disk): it
// keeps the space and crashes at exit. So HDF5 never touches the disk; image() is for write_atomically().
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path);  // the path is for messages only
  Group root();
  std::vector<std::byte> image();  // the file's bytes

 private:
  std::string path_;
  Handle<H5Fclose> handle_;
};

// A file from NewFile on the disk, to which datasets are added. Here HDF5 does touch the disk, so space must be
// allocated beforehand, as bytes after the file's own end: enough for the elements, space_for() the datasets and the
// groups, and kSpacePerChunk for each chunk.
class FileToExtend {
 public:
  static constexpr std::size_t kSpacePerChunk = 256;
  // HDF5 lists a group's members in blocks of up to 64 KiB.
  static constexpr std::size_t space_for(std::size_t datasets, std::size_t groups) {
    return (datasets << 12) + (groups << 17);
  }

  explicit FileToExtend(const std::filesystem::path& path);
  Group root();
  void close();  // writes everything and truncates unused space. REQUIRES: no Group is alive

 private:
  std::string path_;
  Handle<H5Fclose> handle_;
};

}  // namespace annulus::hdf5
