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
  std::filesystem::path checkpoint;  // a file, or the folder of a run
  std::string split = "test";
  bool data_changed = false;     // data of other classes than the checkpoint's is meant
  std::string weights = "auto";  // ema, raw, or auto: the averaged ones where there are any
  std::size_t batch = 64;
  std::filesystem::path json;
  bool overwrite = false;
};

// `annulus eval`. Collective. Throws Error.
void evaluate(const World& world, const EvaluateOptions& options, Activity& activity);

}  // namespace annulus
