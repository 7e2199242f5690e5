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

// Reads a split from a text data set: the concatenation of all given data files (FORMAT.md) that contain the split. The
// files must have the same vocabulary and tokenizer. A sample is `length` + 1 tokens, which read_image() writes as
// int32: from each of the first `length` tokens, a network predicts the next token. In a file, sample i
// begins at token i x length, so that each token but the first is predicted once; windows run across documents but not
// across files. After a file's last token the last window is filled with -1: nothing to predict. Labels are 0.
//
// A network that predicts masked tokens also reads the tokens after them, so that there every window is whole: a file's
// last window begins earlier, and has tokens of the window before. After the window's `length` tokens, read_image()
// writes the number of these tokens instead of the next token.
//
// Opens the files read-only and without file locks, and reads on demand, from any thread. Throws Error naming the file
// and the problem.
class TokenDataset : public Samples {
 public:
  TokenDataset(const std::vector<std::filesystem::path>& files, const std::string& split, std::size_t length,
               Prediction prediction = Prediction::next);
  ~TokenDataset() override;

  void expect_whole_windows() const;  // throws Error naming a file that has fewer tokens than a window

  std::int32_t label(std::size_t /*sample*/) const override { return 0; }
  void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const override;
  void read_shifted(std::size_t sample, std::size_t shift, std::span<std::uint8_t> pixels) const override;
  void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const override;  // as read_image()
  std::string place(std::size_t sample) const override;  // "b.h5: train tokens from 512 on", counted in that file
  void will_need(Range samples) const override;

 private:
  class Shard;
  struct Place {
    const Shard* shard;
    std::size_t begin;  // token
    std::size_t repeated = 0;
  };

  void add(const std::filesystem::path& file);
  void read(std::size_t sample, const Place& place, std::span<std::uint8_t> pixels) const;
  // Without a next token to predict, the last token may be the only one of a window that no other has.
  std::size_t windows(std::size_t tokens) const { return (tokens - 1 - next_tokens()) / info_.length + 1; }
  std::size_t next_tokens() const { return info_.prediction == Prediction::masked ? 0 : 1; }  // after a window
  Place find(std::size_t sample) const;

  std::string split_;
  std::vector<Shard> shards_;
  std::vector<std::size_t> ends_;  // where each shard ends, in samples
};

}  // namespace annulus
