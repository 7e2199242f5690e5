#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace annulus {

// What a data file says about its images.
struct DatasetInfo {
  std::size_t size = 0;  // images of this split
  std::size_t height = 0, width = 0, channels = 0;
  std::vector<std::string> classes;    // names, by label
  std::vector<float> mean, deviation;  // of each channel of the training images, pixels scaled to 0..1

  std::size_t image_bytes() const { return height * width * channels; }
};

// One split of an HDF5 data file, "train" or "test", open for reading:
//   /<split>/images   uint8, N x height x width x channels
//   /<split>/labels   integers, N, each in [0, classes)
//   attributes of the root group: classes (strings), mean and deviation (float32, one each per channel)
// Opened read-only and without file locks; images are read one by one where they are asked for, from any thread. Those
// of a contiguous dataset (HDF5's default) come straight from the file; chunked and compressed ones through HDF5,
// slowly. Throws Error naming the file and what is wrong with it.
class Dataset {
 public:
  Dataset(const std::filesystem::path& file, const std::string& split);
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  const DatasetInfo& info() const { return info_; }
  std::int32_t label(std::size_t sample) const { return labels_[sample]; }
  void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const;  // height x width x channels

 private:
  class Images;
  DatasetInfo info_;
  std::vector<std::int32_t> labels_;
  std::unique_ptr<Images> images_;
};

}  // namespace annulus
