#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "kernels/device.h"
#include "src/checkpoint/run_state.h"
#include "src/data/data_fingerprint.h"
#include "src/data/dataset.h"
#include "src/data/input_plan.h"
#include "src/data/loader.h"
#include "src/train/schedule.h"
#include "src/train/train_options.h"

namespace annulus {

// What a run is given: ranks, options, device, data and schedule. It does not change during the run.
struct TrainingInputs {
  // Opens the device and the data. Collective. Throws Error.
  TrainingInputs(const World& world, const TrainOptions& options);

  const World& world;
  const TrainOptions& options;
  const std::unique_ptr<Device> device;
  const Dataset training, test;
  const InputPlan training_plan, test_plan;
  const std::size_t global_batch;
  const Schedule schedule;
  const std::vector<DataField> samples;  // of both splits

  std::size_t share(std::size_t images) const;  // this rank's share of a step of `images`
  // Images in the largest pass of rank 0, whose choice of parameter layouts all ranks use.
  std::size_t largest_pass() const;
  BatchRequest batches_from(const Cursor& start) const;  // this rank's, up to the last epoch
  std::string sample_order() const;                      // see order_of()
  bool complete(const RunState& state) const;            // all epochs or steps are done
};

}  // namespace annulus
