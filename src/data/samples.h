#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/split.h"

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

// Images by number, to be read one by one from any thread. What is wrong with a sample is its own, and the rest may be
// good: reading one throws Error, with place(sample).
class Samples {
 public:
  virtual ~Samples() = default;

  const DatasetInfo& info() const { return info_; }

  virtual std::int32_t label(std::size_t sample) const = 0;
  virtual void read_image(std::size_t sample,
                          std::span<std::uint8_t> pixels) const = 0;  // decoded: height x width x channels
  virtual void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const = 0;

  // Of several samples at once, one after the other: the decoded images, in little more time than copying so much
  // memory takes, and the labels. False where that cannot be, or where anything is wrong with these samples: then what
  // was written means nothing, and reading them one by one tells.
  virtual bool copy(std::span<const std::size_t> /*samples*/, std::span<std::uint8_t> /*pixels*/,
                    std::span<std::int32_t> /*labels*/) const {
    return false;
  }

  virtual std::string place(std::size_t sample) const = 0;  // for errors, and as the sample's name

  // Tells the operating system that these samples will be read soon.
  virtual void will_need(Range /*samples*/) const {}

 protected:
  Samples() = default;
  Samples(Samples&&) = default;

  DatasetInfo info_;
};

}  // namespace annulus
