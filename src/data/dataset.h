#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/split.h"

namespace annulus {

// What data files say about their images.
struct DatasetInfo {
  std::size_t size = 0;               // images of this split
  std::size_t height = 0, width = 0;  // of decoded images; encoded ones have any
  std::size_t channels = 0;
  std::vector<std::string> classes;    // names, by label
  std::vector<float> mean, deviation;  // of each channel of the training images, pixels scaled to 0..1

  bool encoded() const { return height == 0; }
  std::size_t image_bytes() const { return height * width * channels; }
};

// The files that the user has named, sorted by name: each is a file, or a pattern as the shell has them (*, ?, [a-z]).
// Throws Error where one names no file, or a file is named twice.
std::vector<std::filesystem::path> data_files(const std::vector<std::string>& names);

constexpr std::size_t kMostKeptBytes = std::size_t{16} << 20;  // ImageNet's labels and offsets are 15 MB

// One split of a data set, "train" or "test", open for reading: all data files (FORMAT.md) of those given that have it,
// one after the other. They must have the same classes, mean and deviation, and be alike in what they hold.
// Opened read-only and without file locks; labels and images are read one by one where they are asked for, from any
// thread, and no memory grows with their number: labels and offsets are kept up to kMostKeptBytes, the first files'.
// Throws Error naming the file and what is wrong with it.
class Dataset {
 public:
  Dataset(const std::vector<std::filesystem::path>& files, const std::string& split);
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  const DatasetInfo& info() const { return info_; }

  // Of a sample, where what is wrong is its own, and the rest of the data may be good. Error, with place(sample).
  std::int32_t label(std::size_t sample) const;
  void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const;  // decoded: height x width x channels
  void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const;

  std::string place(std::size_t sample) const;  // "b.h5: train sample 7", counted in its file, for errors

  // Tells the operating system that these samples will be read soon.
  void will_need(Range samples) const;

 private:
  class Shard;
  struct Place {
    const Shard& shard;
    std::size_t sample;  // in the shard
  };

  void add(const std::filesystem::path& file);
  Place find(std::size_t sample) const;
  template <class Read>
  void read(std::size_t sample, const Read& read) const;

  std::string split_;
  DatasetInfo info_;
  std::size_t may_keep_ = kMostKeptBytes;  // of integers, in what is left to open
  std::vector<Shard> shards_;
  std::vector<std::size_t> ends_;  // of the shards, in samples
};

}  // namespace annulus
