#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "kernels/device.h"
#include "models/zoo/zoo.h"
#include "src/checkpoint/checkpoint_folder.h"
#include "src/data/data_fingerprint.h"
#include "src/data/input_plan.h"
#include "src/data/loader.h"
#include "src/data/samples.h"
#include "src/metrics/start_up.h"
#include "src/step/measure.h"
#include "src/train/network_source.h"
#include "src/train/pipeline.h"
#include "src/train/schedule.h"
#include "src/train/strategy_plan.h"
#include "src/train/train_options.h"

namespace annulus {

// A split that a run evaluates.
struct EvaluatedSplit {
  std::string name;  // "validation" or "test"
  std::unique_ptr<const Samples> samples;
  InputPlan plan;
};

// The splits that a run evaluates, and when. Without a split, an evaluation is never due.
struct EvaluatedSplits {
  Interval every{Interval::Unit::run, 1};  // and at the run's end
  // Evaluated during the run: the validation images or, if there are none, the test images. The best checkpoint is
  // chosen by them.
  std::optional<EvaluatedSplit> during;
  // The test images, if they are not evaluated during the run: evaluated once, when the run is complete.
  std::optional<EvaluatedSplit> test;
  std::string absence;  // why there is no split, for the user; else empty

  std::vector<const EvaluatedSplit*> splits() const;
};

// What a run is given: ranks, options, device, data and schedule. It does not change during the run, which begins after
// the choice of a decoder.
struct TrainingInputs {
  // Opens the device and the data. Collective. Throws Error.
  TrainingInputs(const World& world, const TrainOptions& options, StartUp& start_up);

  const World& world;
  const TrainOptions& options;
  const std::optional<PipelineRanks> pipeline;  // none if every rank has the whole network
  std::unique_ptr<Device> device;
  const std::unique_ptr<const Samples> training;
  InputPlan training_plan;
  const Task task;
  const NetworkSource network;
  EvaluatedSplits evaluation;
  const std::size_t global_batch;
  const Schedule schedule;
  const std::vector<DataField> samples;  // of all splits

  // Chooses the decoder of JPEG images, for all splits. `earlier`: see choose_decoder(). Returns a line for the user,
  // or nothing. Collective.
  std::string choose_decoder(std::optional<bool> earlier);

  const World& replicas() const { return pipeline ? pipeline->replicas : world; }  // the ranks with the same network
  std::size_t shards() const;   // of a global batch: --shards, or one for each rank
  std::size_t workers() const;  // the ranks of replicas() that compute
  StrategyPlan strategy_plan() const { return plan_strategy(replicas(), options, global_batch); }
  std::size_t step_size() const { return global_batch * strategy_plan().steps; }  // samples, unless it is paced
  std::size_t share(std::size_t images) const;  // this rank's share of a step of `images`
  // Images in the largest pass of rank 0, whose choice of parameter layouts all ranks use.
  std::size_t largest_pass() const;
  BatchRequest batches_from(const Cursor& start) const;  // this rank's, up to the last epoch
  std::string sample_order() const;                      // see order_of()
  // The option that ends the run after `state` before all epochs are done: "--until accuracy=0.93"; else empty.
  std::string early_end(const RunState& state) const;
  bool complete(const RunState& state) const;         // all epochs are done, or it ends early
  bool owes_evaluation(const RunState& state) const;  // it is complete but for the evaluation at the end
  Measure best_by() const { return options.best_by.value_or(measures_of(training->info()).front()); }
  CheckpointFolder checkpoints(CheckpointFolder::Reached reached = [](std::uint64_t, std::string_view) {}) const {
    return {options.out, options.keep, std::move(reached), best_by()};
  }
};

}  // namespace annulus
