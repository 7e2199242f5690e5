#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/data/samples.h"

namespace annulus {

// The files that the user has named, sorted by name: each is a file, or a pattern as the shell has them (*, ?, [a-z]).
// Throws Error where one names no file, or a file is named twice.
std::vector<std::filesystem::path> data_files(const std::vector<std::string>& names);

constexpr std::size_t kMostKeptBytes = std::size_t{16} << 20;  // ImageNet's labels and offsets are 15 MB

// One split of a data set, "train" or "test", open for reading: all data files (FORMAT.md) of those given that have it,
// one after the other. They must have the same classes, mean and deviation, and be alike in what they hold.
// Opened read-only and without file locks; labels and images are read where they are asked for, from any thread, and no
// memory of the process's own grows with their number: labels and offsets are kept up to kMostKeptBytes, the first
// files'.
// Throws Error naming the file and what is wrong with it.
class Dataset : public Samples {
 public:
  Dataset(const std::vector<std::filesystem::path>& files, const std::string& split);
  ~Dataset() override;
  Dataset(Dataset&&) noexcept;

  std::int32_t label(std::size_t sample) const override;
  void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const override;
  void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const override;
  bool copy(std::span<const std::size_t> samples, std::span<std::uint8_t> pixels,
            std::span<std::int32_t> labels) const override;
  std::string place(std::size_t sample) const override;  // "b.h5: train sample 7", counted in its file
  void will_need(Range samples) const override;

 private:
  class Shard;
  struct Place {
    std::size_t number;  // of the shard
    const Shard* shard;
    std::size_t sample;  // in the shard
  };

  void add(const std::filesystem::path& file);
  Place find(std::size_t sample) const;
  bool whole(std::span<const std::size_t> samples) const;          // the files that they lie in
  std::span<const std::uint8_t> mapped(const Place& place) const;  // the decoded image, to be read by read_mapped()
  template <class Read>
  void read(std::size_t sample, const Read& read) const;

  std::string split_;
  std::size_t may_keep_ = kMostKeptBytes;  // of integers, in what is left to open
  bool mapped_ = true;                     // the images of all files
  std::vector<Shard> shards_;
  std::vector<std::size_t> ends_;  // of the shards, in samples
};

}  // namespace annulus
