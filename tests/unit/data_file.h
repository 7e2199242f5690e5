#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"

namespace annulus::test {

// A data file with one split, "train", every part of which can be changed. By default it is valid: two classes, and
// `size` images of 2x2x1 whose pixels all are the sample's number modulo 256. encode() replaces the images by encoded
// files.
struct DataFile {
  explicit DataFile(std::size_t size);

  Shape images_shape, labels_shape;
  std::vector<std::uint8_t> images;
  std::vector<std::int64_t> labels;
  std::vector<std::string> classes{"even", "odd"};
  std::vector<float> mean{0.5f}, stddev{0.25f};
  std::size_t images_per_chunk = 0;  // 0: contiguous; else compressed as well

  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> offsets;  // of encoded images; of decoded ones none

  void encode(const std::vector<std::vector<std::uint8_t>>& files);
  void write(const std::filesystem::path& file) const;
};

// Where image number `sample` begins in a file that write() made, contiguous.
std::size_t place_of_image(const std::filesystem::path& file, std::size_t sample);

}  // namespace annulus::test
