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
  bool data_changed = false;        // as in EvaluateOptions
  std::size_t top = 5;              // how many classes to report per image
  std::size_t batch = 64;
  std::filesystem::path jsonl;
  bool overwrite = false;
};

// Runs `annulus predict`: finds the most likely classes for each image. The images are distributed over the ranks; rank
// 0 prints the results in the images' order. Unreadable images are named, counted and skipped. Returns 0, or
// EXIT_FAILURE if there were any. The last line, on stderr, has the image count, the time, and the accuracy for images
// with a known class. Collective. Throws Error.
//
// With options.jsonl, writes a line for each image:
//   {"image": "a.jpg", "top": [{"class": "cat", "probability": 0.9, "logit": 7.5}, ...]}   the most likely class first
//   {"image": "a.jpg", "error": "a.jpg: ..."}                                              an unreadable image
// Images from data files also have "label", their class's name.
int predict(const World& world, const PredictOptions& options, Activity& activity);

}  // namespace annulus
