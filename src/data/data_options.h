#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace annulus {

constexpr std::size_t kDefaultLength = 256;

// Holds the command line's data options; input_plan.h resolves values left open.
struct DataOptions {
  std::vector<std::string> files;         // names or patterns
  std::vector<std::string> validation{};  // names or patterns, evaluated during training; none: files
  std::size_t image = 0;                  // height and width for the network; 0: as stored, 224 for encoded images
  std::size_t length = 0;                 // tokens in a text window; 0: the trained network's, or kDefaultLength
  std::string augment = "auto";           // see augment.h; auto: imagenet for encoded images, else none
  bool alternate = false;                 // see Augmentation, as the next
  std::size_t shift = 0;
  std::vector<std::size_t> rand_augment{0, 9};  // changes per image, and their magnitude
  double erase = 0;                             // probability that an image has a rectangle erased
  double mixup = 0, cutmix = 0;                 // see mix_images; 0: images are not mixed
  std::string views = "one";                    // see parse_views()
  std::string shuffle = "global";               // or "block"
  std::size_t shuffle_block = 256;              // samples
  std::size_t shuffle_window = 16;              // blocks
  std::size_t workers = 0;                      // threads on each rank; 0: chosen by data and device
  std::size_t prefetch = 3;                     // batches
  std::string on_bad_sample = "fail";           // or "skip"
  std::string decode = "auto";                  // or "cpu" or "gpu", see choose_decoder()
};

}  // namespace annulus
