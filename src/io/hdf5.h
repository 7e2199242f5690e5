#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/tensor.h"

// As much of HDF5 as data files and checkpoints need. Failures are thrown as Error: the file, the object, and what HDF5
// itself says was the innermost cause. Any thread may use any object: Debian's HDF5 has a lock inside, and
// thread_safe() tells of one that has not.
namespace annulus::hdf5 {

std::string version();  // of the library in use
bool thread_safe();

// Owns one of HDF5's identifiers.
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

// A group or a dataset: what has a place in a file, and attributes.
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

  bool holds_integers() const;  // of any size

  // How integers lie in the file; none where the elements are no integers of 1, 2, 4 or 8 bytes, or these lie otherwise
  // than here. Throws Error where they have more than 8 bytes.
  struct IntegerForm {
    std::size_t bytes;
    bool has_sign;
  };
  std::optional<IntegerForm> integer_form() const;

  // All elements, row-major. Integers are converted to T, and so are floats; one to the other is an Error.
  template <class T>
  std::vector<T> read() const;

  // `count` elements of the outermost dimension, from `first` on, as read() has them.
  template <class T>
  void read_rows(std::size_t first, std::size_t count, std::span<T> values) const;

  // Throws Error unless the file holds every element that the shape promises: datasets that were never written,
  // sizes beyond the file's or the address space, and elements in other files (virtual datasets, external storage).
  void require_stored() const;

  // Name of the file that the dataset lies in. Behind an external link it is not the file that was opened.
  std::string file() const;

  // Where in file() the elements lie, row-major as they are; none if they are chunked or compressed.
  std::optional<std::uint64_t> offset() const;

  // Where its chunks begin, which are of so many elements of the outermost dimension and of all of the others.
  std::vector<std::uint64_t> chunks(std::size_t rows) const;

 private:
  std::uint64_t file_bytes() const;
  void require_contiguous_stored(std::uint64_t bytes) const;
  void require_chunks_stored(const Properties& properties) const;
};

class Group : public Object {
 public:
  using Object::Object;

  bool has(const std::string& name) const;
  std::vector<std::string> names() const;  // in the order of creation where the file knows it, else by name
  Group group(const std::string& name) const;
  Dataset dataset(const std::string& name) const;

  Group create_group(const std::string& name);
  template <class T>
  void write(const std::string& name, const Shape& shape, std::span<const T> values);

  // A contiguous dataset whose elements are for others to write: where in the file they belong, row-major.
  template <class T>
  std::uint64_t reserve(const std::string& name, const Shape& shape);

  // One in chunks of so many elements of the outermost dimension: where each begins. A checksum of kChecksumBytes lies
  // behind it, fletcher32(). HDF5 writes zeros everywhere, which the last chunk keeps behind its elements. It looks for
  // each chunk among all, so there should be no more than kMostChunks.
  template <class T>
  std::vector<std::uint64_t> reserve_chunks(const std::string& name, const Shape& shape, std::size_t rows);
  static constexpr std::size_t kChecksumBytes = 4, kMostChunks = 10000;

 private:
  template <class T>
  Dataset create(const std::string& name, const Shape& shape, const Properties& properties);
  std::string place_of(const std::string& name) const;
  void require(const std::string& name) const;
};

// A file to read, opened without file locks: they fail on NFS and Lustre mounts, and a data file does not change.
class File {
 public:
  explicit File(const std::filesystem::path& path);
  Group root() const;

 private:
  std::string path_;
  Handle<H5Fclose> handle_;
};

// A file to write, made in memory. HDF5 1.10 can neither close nor forget a file that it failed to write (a full
// disk): it keeps the space and crashes at exit. So HDF5 never meets the disk; image() is for write_atomically().
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path);  // the path is for errors
  Group root();
  std::vector<std::byte> image();  // the file's bytes

 private:
  std::string path_;
  Handle<H5Fclose> handle_;
};

// A file that NewFile made, on the disk: datasets are added whose elements HDF5 need not see (Group::reserve). Here
// HDF5 does meet the disk, so the space must be there beforehand, as bytes behind the file's own: all that it takes for
// the datasets, kSpacePerDataset for each, and kSpacePerChunk for each chunk.
class FileToExtend {
 public:
  static constexpr std::size_t kSpacePerDataset = 1 << 16, kSpacePerChunk = 256;

  explicit FileToExtend(const std::filesystem::path& path);
  Group root();
  void close();  // with everything written; groups must be gone. Cuts off what was too much space

 private:
  std::string path_;
  Handle<H5Fclose> handle_;
};

}  // namespace annulus::hdf5
