#pragma once

#include "src/data/augment.h"
#include "src/data/data_options.h"
#include "src/data/dataset.h"
#include "src/data/sampler.h"

namespace annulus {

// How samples become batches: what the command line asks for, with what it leaves open decided.
struct InputPlan {
  // Of what the network gets.
  ImageSize image;
  std::size_t channels = 0;
  double margin = 1;  // see centre_crop
  Augmentation augmentation;

  Shuffle shuffle;
  std::size_t workers = 1;   // threads that read and decode
  std::size_t prefetch = 3;  // batches that are ready before they are asked for
  bool skip_bad = false;
  bool replace_bad = false;  // by the next good sample, so that batches keep their size

  std::size_t image_bytes() const { return image.height * image.width * channels; }

  // Whether decoded images of this size are what the network gets, and need not be resized.
  bool takes_as_stored(const ImageSize& stored) const { return stored == image && augmentation.crop != Crop::resized; }
};

std::string to_string(const InputPlan& plan);     // for people
std::string name_of(const DataOptions& options);  // of the data set: its files

// What the order of an epoch's samples depends on besides the seed, as the command line has it.
std::string order_of(const InputPlan& plan, const DatasetInfo& info);

enum class Purpose { training, evaluation };

// `processors`: as many threads as decode where the options leave that open. `trained`: the images of the network that
// is there already, which is what it gets where the options leave that open; none: {}. Throws Error where the options
// do not fit the data.
InputPlan plan_input(const DataOptions& options, const DatasetInfo& info, Purpose purpose, std::size_t processors,
                     const ImageSize& trained = {});

}  // namespace annulus
