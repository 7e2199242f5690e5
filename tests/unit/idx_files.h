#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "kernels/base/tensor.h"
#include "tests/unit/temporary_folder.h"

namespace annulus::test {

inline std::string idx_header(const Shape& shape) {
  std::string text{'\0', '\0', '\x08', static_cast<char>(shape.size())};
  for (const std::size_t extent : shape) {
    for (const int shift : {24, 16, 8, 0}) text.push_back(static_cast<char>(extent >> shift));
  }
  return text;
}

// Four images of 2x3 for training and two for testing; labels 0, 1, 2, 0 and 2, 1.
inline void write_idx_source(const std::filesystem::path& folder) {
  write_text(folder / "train-images-idx3-ubyte", idx_header({4, 2, 3}) + "abcdefghijklmnopqrstuvwx");
  write_text(folder / "train-labels-idx1-ubyte", idx_header({4}) + std::string("\0\1\2\0", 4));
  write_text(folder / "t10k-images-idx3-ubyte", idx_header({2, 2, 3}) + "ABCDEFGHIJKL");
  write_text(folder / "t10k-labels-idx1-ubyte", idx_header({2}) + std::string("\2\1", 2));
}

}  // namespace annulus::test
