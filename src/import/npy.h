#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/base/tensor.h"
#include "src/io/file_descriptor.h"

namespace annulus {

// An array of numbers in NumPy's format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html,
// versions 1 to 3), row-major and little-endian, with random access. Throws Error naming the file and the problem:
// another format, order or type of elements, a header that does not match the file's size.
class NpyFile {
 public:
  explicit NpyFile(const std::filesystem::path& file);

  const Shape& shape() const { return shape_; }
  bool holds_bytes() const { return element_bytes_ == 1 && !is_signed_; }
  bool holds_floats() const { return is_float_; }

  void read_bytes(std::size_t begin, std::span<std::uint8_t> elements) const;  // REQUIRES: holds_bytes()
  std::vector<std::int64_t> read_integers(const Range& elements) const;        // throws Error on overflow of int64
  std::vector<float> read_floats(const Range& elements) const;  // float64 is rounded. REQUIRES: holds_floats()

 private:
  void read_header();
  void parse(const std::string& header);
  void parse_type(const std::string& description);

  std::filesystem::path file_;
  FileDescriptor descriptor_;
  Shape shape_;
  std::size_t element_bytes_ = 0;
  bool is_signed_ = false, is_float_ = false;
  std::uint64_t begin_ = 0;  // of the elements in the file
};

}  // namespace annulus
