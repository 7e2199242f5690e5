#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "collectives/world/world.h"
#include "models/network/model.h"
#include "src/checkpoint/checkpoint.h"
#include "src/data/data_options.h"
#include "src/data/input_plan.h"
#include "src/job/activity.h"
#include "src/job/open_device.h"

namespace annulus {

struct EvaluateOptions {
  DeviceOptions device;
  DataOptions data;
  std::filesystem::path checkpoint;  // a file, or a run's folder
  bool follow = false;               // all checkpoints in the run's folder, until the run ends (follow_run.h)
  double interval = 10;              // with `follow`: least seconds between the begins of two evaluations
  double grace = 600;                // with `follow`: seconds to wait for another job if the run's job ended too early
  std::string split = "test";
  bool data_changed = false;     // accept data with other classes than the checkpoint's
  std::string weights = "auto";  // ema, raw, or auto: ema if the checkpoint has it
  std::size_t batch = 64;
  bool per_class = false;  // precision and recall for each class, and the confusions
  std::filesystem::path json;
  bool overwrite = false;
};

// Evaluates a run's checkpoints, one after the other, on the same data.
class CheckpointEvaluator {
 public:
  // Prepares for checkpoints with this network. Collective. Throws Error, also if the ranks differ. `options` and
  // `activity` must outlive the evaluator.
  CheckpointEvaluator(const World& world, const EvaluateOptions& options, const CheckpointFile& file,
                      Activity& activity);

  // Collective; the root prints the result and returns it as JSON, other ranks return null.
  nlohmann::json evaluate(const CheckpointFile& file);

 private:
  const World& world_;
  const EvaluateOptions& options_;
  Activity& activity_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<const Samples> samples_;
  std::string note_;  // to be printed with the first result
  InputPlan input_;
  Model model_;
};

// Runs `annulus eval`. Collective. Throws Error.
void evaluate(const World& world, const EvaluateOptions& options, Activity& activity);

}  // namespace annulus
