#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/data/samples.h"

namespace annulus {

// Resolves the names given by the user, each a file or a shell pattern (*, ?, [a-z]), to files sorted by name. Throws
// Error if a name matches no file, or a file is named twice.
std::vector<std::filesystem::path> data_files(const std::vector<std::string>& names);

// Returns whether any file has the split. Throws Error if a file cannot be opened.
bool has_split(const std::vector<std::filesystem::path>& files, const std::string& split);

constexpr std::size_t kMostKeptBytes = std::size_t{16} << 20;  // ImageNet's labels and offsets are 15 MB

// Reads a split, "train", "validation" or "test", of images or texts with labels: the concatenation of all given data
// files (FORMAT.md) that contain the split. The files must have the same classes, mean and std, and the same kind of
// content. Opens the files
// read-only and without file locks. Reads labels and images on demand, from any thread; memory does not grow with the
// number of samples: labels and offsets are kept in memory up to kMostKeptBytes, the first files' first. Throws Error
// naming the file and the problem.
class Dataset : public Samples {
 public:
  Dataset(const std::vector<std::filesystem::path>& files, const std::string& split);
  ~Dataset() override;
  Dataset(Dataset&&) noexcept;

  std::int32_t label(std::size_t sample) const override;
  void read_targets(std::size_t sample, std::span<float> targets) const override;
  void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const override;
  void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const override;
  bool copy(std::span<const std::size_t> samples, std::span<std::uint8_t> pixels, std::span<std::int32_t> labels,
            std::span<float> targets) const override;
  std::string place(std::size_t sample) const override;  // "b.h5: train sample 7", counted in that file
  void will_need(Range samples) const override;

 private:
  class Shard;
  struct Place {
    std::size_t number;  // the shard's
    const Shard* shard;
    std::size_t sample;  // in the shard
  };

  void add(const std::filesystem::path& file);
  Place find(std::size_t sample) const;
  bool whole(std::span<const std::size_t> samples) const;          // the files that contain them
  std::span<const std::uint8_t> mapped(const Place& place) const;  // the decoded image; to be read inside read_mapped()
  template <class Read>
  void read(std::size_t sample, const Read& read) const;

  std::string split_;
  std::size_t may_keep_ = kMostKeptBytes;  // remaining budget for labels and offsets in files not yet opened
  bool mapped_ = true;                     // all files' images are mapped
  std::vector<Shard> shards_;
  std::vector<std::size_t> ends_;  // where each shard ends, in samples
};

}  // namespace annulus
