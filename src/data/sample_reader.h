#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/mixed_label.h"
#include "src/data/augment.h"
#include "src/data/input_plan.h"
#include "src/data/resize.h"
#include "src/data/samples.h"

namespace annulus {

// Time per reading stage, in seconds summed over all threads.
struct ReadTimes {
  double reading = 0, decoding = 0, resizing = 0, augmenting = 0;
  std::uint64_t samples = 0, bytes = 0;  // bytes: as stored
  std::uint64_t by_device = 0;           // samples decoded by plan.make_decoder's decoder

  double sum() const { return reading + decoding + resizing + augmenting; }
  ReadTimes& operator+=(const ReadTimes& other);
  ReadTimes operator-(const ReadTimes& other) const;
};

// Samples and their place in a batch: each array has a row for each sample.
struct SampleRows {
  std::span<std::size_t> samples;
  std::span<std::uint64_t> keys;   // a function of (seed, epoch, sample), which determines the random numbers
  std::span<std::uint8_t> pixels;  // rows of InputPlan::image_bytes(); or ShownImages, see InputPlan::resident
  std::span<std::int32_t> labels;  // see Samples::label()
  std::span<float> targets;        // rows of DatasetInfo::targets()
  std::uint64_t seed = 0, epoch = 0;
};

// Converts samples to the network's input. For use by a single thread: reuses memory, and allocates only if a sample is
// larger than all before.
class SampleReader {
 public:
  SampleReader(const Samples& dataset, const InputPlan& plan);

  // Called for a row whose sample is bad, with the number of samples tried before and an error that names the sample:
  // reading or decoding failed, or the label is invalid. Returns whether the row has another sample now, which is tried
  // next. May throw.
  using OnBad = std::function<bool(std::size_t row, std::size_t tried, const Error& error)>;

  // Reads samples, decodes and augments them. Several are read much faster than one by one.
  void read(const SampleRows& rows, const OnBad& on_bad);

  // Mixes each image except the last with the next original image, and writes the mixed label. REQUIRES: `mixed` has 1
  // element less than images, labels and keys.
  void mix_neighbours(std::span<const std::uint64_t> keys, std::span<std::uint8_t> pixels,
                      std::span<const std::int32_t> labels, std::span<MixedLabel> mixed);

  const ReadTimes& times() const { return times_; }

 private:
  // Holds the image rows that the crop needs, decoded ahead.
  struct Decoded {
    std::size_t sample;
    ImageSize size;  // the whole image's
    std::size_t first_row;
    Image rows{};
    std::vector<std::uint8_t> file{};
  };

  std::span<std::uint8_t> image_of(const SampleRows& rows, std::size_t row) const {
    return rows.pixels.subspan(row * plan_.image_bytes(), plan_.image_bytes());
  }
  bool copy(const SampleRows& rows);
  void read_row(const SampleRows& rows, std::size_t row);
  void decode_ahead(const SampleRows& rows);
  void prepare(std::size_t sample, std::uint64_t key);
  const Decoded* decoded(std::size_t sample) const;
  // Return the stored image's size.
  ImageSize read_encoded(std::size_t sample, Draws& draws, std::span<std::uint8_t> pixels);
  ImageSize read_decoded(std::size_t sample, Draws& draws, std::span<std::uint8_t> pixels);
  void read_window(std::size_t sample, Draws& draws, std::span<std::uint8_t> pixels);
  ShownImage shown(Draws& draws, const ImageSize& stored, const SampleRows& rows, std::size_t row) const;
  void show(const ShownImage& image, std::span<std::uint8_t> pixels);
  // Inlined in copy(), it made reading flipped images 3 % slower (GCC 12).
  [[gnu::noinline]] void augment(Draws& draws, const ImageSize& stored, const SampleRows& rows, std::size_t row);
  Window crop(Draws& draws, const ImageSize& image) const;
  void add_time(double& part);  // adds the time since the last call

  const Samples& dataset_;
  const InputPlan& plan_;
  const std::vector<std::uint8_t> mean_colour_;
  std::unique_ptr<JpegDecoder> decoder_;  // made with the first use, by the thread that uses it
  std::vector<std::uint8_t> bytes_, scratch_;
  Image image_;
  std::vector<Decoded> ahead_;
  std::vector<JpegJob> jobs_;  // job i fills ahead_[i]
  Resizer resizer_;
  ReadTimes times_;
  double last_ = 0;
};

}  // namespace annulus
