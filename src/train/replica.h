#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/all_reduce.h"
#include "models/network/model.h"
#include "src/step/ledger.h"
#include "src/step/optimizer.h"
#include "src/step/resident_images.h"
#include "src/step/step.h"
#include "src/step/step_options.h"
#include "src/train/run_record.h"
#include "src/train/training_inputs.h"

namespace annulus {

// What a replica is built from. All references must outlive the replica.
struct ReplicaPlan {
  Device& device;
  const TrainOptions& options;
  Graph graph;
  std::size_t largest_pass;  // samples
  StepOptions step;
  float rate;                                // in the first step
  std::unique_ptr<AllReduce> within_node{};  // see StepTools
  std::uint64_t steps = 0;                   // the whole run's
  std::unique_ptr<PipelineLink> link{};      // to the other stages of a pipeline; null if there are none
  std::optional<PipelinePlan> pipeline{};    // for the stages
  std::unique_ptr<ResidentImages> images{};
};

// A rank's replica of the model, or of a stage of it, with its optimizer, ledger and training step.
struct Replica {
  // All references must outlive the replica. `cuts`: see plan_pipeline().
  Replica(const TrainingInputs& inputs, AllReduce& all_reduce, RunRecord& record, const std::vector<std::string>& cuts);
  Replica(ReplicaPlan built_from, AllReduce& all_reduce, RunRecord& record);

  AllReduce& all_reduce;
  const std::unique_ptr<AllReduce> within_node;  // see StepTools; may be null
  const std::unique_ptr<PipelineLink> link;      // see ReplicaPlan
  const std::optional<PipelinePlan> plan;
  const std::unique_ptr<ResidentImages> images;  // for training, if they are kept on a GPU; else null
  Model model;
  Optimizer optimizer;
  Ledger ledger;
  const std::unique_ptr<Step> step;
  bool holds_state = true;  // that after a whole number of steps, rather than other weights

  // How samples become the step's batches.
  InputPlan input(const TrainingInputs& inputs) const;

  // Plans the networks of all batch sizes, so that no step has to plan: the last batch of an epoch is smaller.
  void plan_networks(const TrainingInputs& inputs);

  // Describes everything that the last bits of all-reduced gradients depend on.
  std::string summation(const TrainingInputs& inputs) const;
};

}  // namespace annulus
