#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/labels.h"
#include "kernels/base/split.h"
#include "kernels/base/window_form.h"

namespace annulus {

// Returns the windows that are loaded as a batch's images.
inline std::span<const std::int32_t> windows_in(std::span<const std::uint8_t> images) {
  return {reinterpret_cast<const std::int32_t*>(images.data()), images.size() / sizeof(std::int32_t)};
}

// Describes the images or the text in data files.
struct DatasetInfo {
  std::size_t size = 0;               // images or text windows in this split
  std::size_t height = 0, width = 0;  // decoded images; 0: encoded images, in any size
  std::size_t channels = 0;
  LabelKind labels = LabelKind::one_class;
  std::vector<std::string> classes;  // names, by label, or the names of a label's values
  std::vector<float> mean, stddev;   // per channel, over the training images' pixels scaled to 0..1

  // Text only: samples are windows of tokens (TokenDataset) or, with labels, texts (Dataset).
  std::size_t vocabulary = 0;  // number of different tokens; 0: images
  std::size_t mask_token = 0;  // stands for a masked token
  std::size_t length = 0;      // tokens that a network reads
  Prediction prediction = Prediction::next;
  std::uint64_t tokens = 0;      // in this split
  std::uint64_t text_bytes = 0;  // that the tokens stand for; 0: unknown
  std::string tokenizer{};       // Tokenizer::serialized(); empty: unknown

  bool is_text() const { return vocabulary > 0; }
  bool predicts_tokens() const { return labels == LabelKind::tokens; }
  // Returns how many numbers a label has, 0 or 1 for each class, or values; 0 if labels are a class or tokens.
  std::size_t targets() const { return labels == LabelKind::one_class ? 0 : classes.size(); }
  bool encoded() const { return height == 0 && !is_text(); }
  // Returns a sample's size, unless encoded. A sample of text without labels has the token after its `length` tokens.
  std::size_t image_bytes() const {
    return is_text() ? (length + (predicts_tokens() ? 1 : 0)) * sizeof(std::int32_t) : height * width * channels;
  }
};

// Reads images or text windows by number, from any thread. A bad sample does not affect other samples: reading it
// throws Error, naming place(sample).
class Samples {
 public:
  virtual ~Samples() = default;

  const DatasetInfo& info() const { return info_; }

  // Returns a sample's class; 0 if labels are not LabelKind::one_class: then read_targets() reads info().targets()
  // numbers.
  virtual std::int32_t label(std::size_t sample) const = 0;
  virtual void read_targets(std::size_t /*sample*/, std::span<float> /*targets*/) const {}
  // Decoded images: height x width x channels. Text: tokens, int32.
  virtual void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const = 0;
  virtual void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const = 0;
  // Text: reads a window that begins `shift` tokens later, or as late as the text permits. REQUIRES: info() predicts
  // tokens.
  virtual void read_shifted(std::size_t /*sample*/, std::size_t /*shift*/, std::span<std::uint8_t> /*pixels*/) const {}

  // Copies several samples' decoded images and labels, in little more time than an equally large memory copy. Returns
  // false if that is not possible or a sample is bad: then the output is undefined, and reading each sample reports the
  // error.
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
