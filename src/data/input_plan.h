#pragma once

#include "kernels/base/jpeg_decoder.h"
#include "src/data/augment.h"
#include "src/data/data_options.h"
#include "src/data/dataset.h"
#include "src/data/sampler.h"

namespace annulus {

// How samples become batches: the data options, with all defaults resolved.
struct InputPlan {
  // The network's input: images, or windows of text.
  ImageSize image;
  std::size_t channels = 0;
  double margin = 1;  // see centre_crop
  Augmentation augmentation;
  std::size_t length = 0;      // of windows of text, whose samples have one token more; 0: images
  bool shift_windows = false;  // randomly, by less than their length

  Shuffle shuffle;
  std::size_t workers = 1;   // number of threads that read and decode
  std::size_t prefetch = 3;  // number of batches prepared in advance
  bool skip_bad = false;
  bool replace_bad = false;  // replace it by the next good sample, so that batches keep their size

  MakeJpegDecoder make_decoder{};  // makes the decoder of each thread; empty: libjpeg decodes all images

  // Of a sample.
  std::size_t image_bytes() const { return length > 0 ? window_bytes(length) : image.height * image.width * channels; }

  // Returns whether the network gets decoded images of this size unchanged, without resizing.
  bool takes_as_stored(const ImageSize& stored) const { return stored == image && augmentation.crop != Crop::resized; }
};

std::string to_string(const InputPlan& plan);     // for people
std::string name_of(const DataOptions& options);  // name of the data set: its files

// Everything besides the seed that determines the order of an epoch's samples, in terms of the command line's options.
std::string order_of(const InputPlan& plan, const DatasetInfo& info);

enum class Purpose { training, evaluation };

// `processors`: the default for the number of workers. `trained`: the image size of an already trained network, the
// default for the network's input; {}: none. Throws Error if the options do not fit the data.
InputPlan plan_input(const DataOptions& options, const DatasetInfo& info, Purpose purpose, std::size_t processors,
                     const ImageSize& trained = {});

}  // namespace annulus
