#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "kernels/tensor.h"

namespace annulus {

// An array of bytes in the IDX format of the MNIST database (http://yann.lecun.com/exdb/mnist): two zero bytes, the
// element's type, the number of dimensions, the dimensions as big-endian 32-bit words, the elements row-major.
struct IdxArray {
  Shape shape;
  std::vector<std::uint8_t> values;
};

// Reads a file of unsigned bytes, gzip-compressed or not. Throws Error naming the file and what is wrong with it:
// another format or element type, a size that cannot be, too few bytes or too many, a broken compression.
IdxArray read_idx(const std::filesystem::path& file);

}  // namespace annulus
