#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/labels.h"
#include "kernels/base/split.h"

namespace annulus {

// The description of the images in data files.
struct DatasetInfo {
  std::size_t size = 0;               // number of images of this split
  std::size_t height = 0, width = 0;  // of decoded images; 0 for encoded ones, which may have any size
  std::size_t channels = 0;
  LabelKind labels = LabelKind::one_class;
  std::vector<std::string> classes;  // names of the classes, by label, or of the values that a label has
  std::vector<float> mean, stddev;   // of each channel of the training images, pixels scaled to 0..1

  // Numbers in a label that is not one class: 0 or 1 for each class, or the values.
  std::size_t targets() const { return labels == LabelKind::one_class ? 0 : classes.size(); }
  bool encoded() const { return height == 0; }
  std::size_t image_bytes() const { return height * width * channels; }
};

// Images by number, read one by one from any thread. A bad sample does not affect the others: reading it throws Error,
// naming place(sample).
class Samples {
 public:
  virtual ~Samples() = default;

  const DatasetInfo& info() const { return info_; }

  // The class of a sample; 0 if labels are not one class. Then read_targets() reads them, info().targets() of them.
  virtual std::int32_t label(std::size_t sample) const = 0;
  virtual void read_targets(std::size_t /*sample*/, std::span<float> /*targets*/) const {}
  virtual void read_image(std::size_t sample,
                          std::span<std::uint8_t> pixels) const = 0;  // decoded: height x width x channels
  virtual void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const = 0;

  // Copies the decoded images and labels of several samples, in little more time than a memory copy of the same size.
  // Returns false if that is not possible or anything is wrong with these samples: then the output is undefined, and
  // reading them one by one reports the error.
  virtual bool copy(std::span<const std::size_t> /*samples*/, std::span<std::uint8_t> /*pixels*/,
                    std::span<std::int32_t> /*labels*/, std::span<float> /*targets*/) const {
    return false;
  }

  virtual std::string place(std::size_t sample) const = 0;  // for errors, and as the sample's name

  // Announces to the operating system that these samples will be read soon.
  virtual void will_need(Range /*samples*/) const {}

 protected:
  Samples() = default;
  Samples(Samples&&) = default;

  DatasetInfo info_;
};

}  // namespace annulus
