#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/data/samples.h"

namespace annulus {

// One split of a data set of text, open for reading: the concatenation of all given data files (FORMAT.md) that contain
// it. They must have the same vocabulary and tokenizer. A sample is a window of `length` + 1 tokens, which read_image()
// writes as int32: from each of the first `length`, a network predicts the one after it. Sample i begins at token
// i x length of its file, so that each token is predicted once, but a file's first; windows run across documents but
// not across files. After a file's last token its last window has -1, which is nothing to predict. Labels are 0.
//
// The files are opened read-only and without file locks, and read on demand, from any thread. Throws Error naming the
// file and the problem.
class TokenDataset : public Samples {
 public:
  TokenDataset(const std::vector<std::filesystem::path>& files, const std::string& split, std::size_t length);
  ~TokenDataset() override;

  std::int32_t label(std::size_t /*sample*/) const override { return 0; }
  void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const override;
  void read_shifted(std::size_t sample, std::size_t shift, std::span<std::uint8_t> pixels) const override;
  void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const override;  // as read_image()
  std::string place(std::size_t sample) const override;  // "b.h5: train tokens from 512 on", counted in its file
  void will_need(Range samples) const override;

 private:
  class Shard;
  struct Place {
    const Shard* shard;
    std::size_t begin;  // token
  };

  void add(const std::filesystem::path& file);
  void read(std::size_t sample, const Place& place, std::span<std::uint8_t> pixels) const;
  std::size_t windows(std::size_t tokens) const { return (tokens - 2) / info_.length + 1; }
  Place find(std::size_t sample) const;

  std::string split_;
  std::vector<Shard> shards_;
  std::vector<std::size_t> ends_;  // end of each shard, in samples
};

}  // namespace annulus
