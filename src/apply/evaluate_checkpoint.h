#pragma once

#include <filesystem>
#include <string>

#include "collectives/world/world.h"
#include "src/data/data_options.h"
#include "src/job/activity.h"
#include "src/job/open_device.h"

namespace annulus {

struct EvaluateOptions {
  DeviceOptions device;
  DataOptions data;
  std::filesystem::path checkpoint;  // a file, or a run's folder
  std::string split = "test";
  bool data_changed = false;     // accept data whose classes differ from the checkpoint's
  std::string weights = "auto";  // ema, raw, or auto: ema if the checkpoint has it
  std::size_t batch = 64;
  bool per_class = false;  // precision and recall of each class, and the confusions
  std::filesystem::path json;
  bool overwrite = false;
};

// Runs `annulus eval`. Collective. Throws Error.
void evaluate(const World& world, const EvaluateOptions& options, Activity& activity);

}  // namespace annulus
