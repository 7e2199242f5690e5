#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "src/job/activity.h"
#include "src/job/open_device.h"

namespace annulus {

struct PredictOptions {
  DeviceOptions device;
  std::filesystem::path checkpoint;  // or a run's folder
  std::string weights = "auto";
  std::vector<std::string> images;  // files, folders, and data files with their split: "test.h5:train"
  bool data_changed = false;        // as of EvaluateOptions
  std::size_t top = 5;              // classes told of each
  std::size_t batch = 64;
  std::filesystem::path jsonl;
  bool overwrite = false;
};

// `annulus predict`: the likeliest classes of each image, in the order in which they are given, shared out over the
// ranks and told by rank 0. Images that cannot be read are named and counted, and the others go on. Returns 0, or
// EXIT_FAILURE where there were any such. The last line, on stderr, has their number, the time, and the accuracy of
// those whose class is known. Collective. Throws Error.
//
// With options.jsonl, a line for each image:
//   {"image": "a.jpg", "top": [{"class": "cat", "probability": 0.9, "logit": 7.5}, ...]}   the likeliest first
//   {"image": "a.jpg", "error": "a.jpg: ..."}                                              of one that cannot be read
// Those of data files have "label" as well, the name of their class.
int predict(const World& world, const PredictOptions& options, Activity& activity);

}  // namespace annulus
