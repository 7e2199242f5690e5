#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"

namespace annulus {

// Sequentially reads an array of bytes in the IDX format of the MNIST database (http://yann.lecun.com/exdb/mnist): two
// zero bytes, the element's type, the number of dimensions, the dimensions as big-endian 32-bit words, the elements
// row-major. The file may be gzip-compressed. All functions throw Error naming the file and the problem: another format
// or element type, an impossible size, too few or too many bytes, damaged compression.
class IdxReader {
 public:
  explicit IdxReader(const std::filesystem::path& file);  // reads the header

  const std::string& path() const { return path_; }
  const Shape& shape() const { return shape_; }
  void read(std::span<std::uint8_t> elements);  // reads the next elements
  void expect_end();                            // REQUIRES: all elements were read

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose_r(file); }
  };

  std::size_t read_some(std::span<std::uint8_t> bytes);
  void read_exactly(std::span<std::uint8_t> bytes, const char* what);
  void read_header();

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  Shape shape_;
};

// All elements of a file.
struct IdxArray {
  Shape shape;
  std::vector<std::uint8_t> values;
};

IdxArray read_idx(const std::filesystem::path& file);

}  // namespace annulus
