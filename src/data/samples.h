#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/labels.h"
#include "kernels/base/split.h"

namespace annulus {

// The size of a window of text: the tokens that are predicted, and one before them.
constexpr std::size_t window_bytes(std::size_t length) {
  return (length + 1) * sizeof(std::int32_t);
}

// Returns the windows that are loaded as the images of a batch.
inline std::span<const std::int32_t> windows_in(std::span<const std::uint8_t> images) {
  return {reinterpret_cast<const std::int32_t*>(images.data()), images.size() / sizeof(std::int32_t)};
}

// The description of the images or the text in data files.
struct DatasetInfo {
  std::size_t size = 0;               // number of images, or of windows of text, of this split
  std::size_t height = 0, width = 0;  // of decoded images; 0 for encoded ones, which may have any size
  std::size_t channels = 0;
  LabelKind labels = LabelKind::one_class;
  std::vector<std::string> classes;  // names of the classes, by label, or of the values that a label has
  std::vector<float> mean, stddev;   // of each channel of the training images, pixels scaled to 0..1

  // Of text, whose labels are LabelKind::tokens and whose samples are windows of it (see TokenDataset).
  std::size_t vocabulary = 0;    // number of tokens that there are; 0: images
  std::size_t length = 0;        // of a window: the tokens that are predicted
  std::uint64_t tokens = 0;      // in this split
  std::uint64_t text_bytes = 0;  // that they stand for; 0: unknown
  std::string tokenizer{};       // Tokenizer::serialized(); empty: unknown

  bool is_text() const { return labels == LabelKind::tokens; }
  // Numbers in a label that is neither one class nor tokens: 0 or 1 for each class, or the values.
  std::size_t targets() const { return labels == LabelKind::one_class ? 0 : classes.size(); }
  bool encoded() const { return height == 0 && !is_text(); }
  // Of a sample, unless it is encoded.
  std::size_t image_bytes() const { return is_text() ? window_bytes(length) : height * width * channels; }
};

// Images, or windows of text, by number, read one by one from any thread. A bad sample does not affect the others:
// reading it throws Error, naming place(sample).
class Samples {
 public:
  virtual ~Samples() = default;

  const DatasetInfo& info() const { return info_; }

  // The class of a sample; 0 if labels are not one class. Then read_targets() reads them, info().targets() of them.
  virtual std::int32_t label(std::size_t sample) const = 0;
  virtual void read_targets(std::size_t /*sample*/, std::span<float> /*targets*/) const {}
  // Decoded: height x width x channels. Of text: the tokens of a window, int32.
  virtual void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const = 0;
  virtual void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const = 0;
  // Text: reads a window that begins `shift` tokens later, or as late as the text permits. REQUIRES: info().is_text().
  virtual void read_shifted(std::size_t /*sample*/, std::size_t /*shift*/, std::span<std::uint8_t> /*pixels*/) const {}

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
