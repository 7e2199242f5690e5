#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace annulus {

// What the command line asks for of the data; input_plan.h decides what it leaves open.
struct DataOptions {
  std::vector<std::string> files;      // or patterns
  std::size_t image = 0;               // height and width for the network; 0: as stored, of encoded ones 224
  std::string augment = "auto";        // see augment.h; auto: imagenet for encoded images, none for others
  std::string shuffle = "global";      // or "block"
  std::size_t shuffle_block = 256;     // samples
  std::size_t shuffle_window = 16;     // blocks
  std::size_t workers = 0;             // threads on each rank; 0: as the data and the device want
  std::size_t prefetch = 3;            // batches
  std::string on_bad_sample = "fail";  // or "skip"
};

}  // namespace annulus
