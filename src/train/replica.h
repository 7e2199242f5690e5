#pragma once

#include <memory>
#include <optional>
#include <string>

#include "collectives/all_reduce.h"
#include "models/network/model.h"
#include "src/step/ledger.h"
#include "src/step/optimizer.h"
#include "src/step/step.h"
#include "src/train/run_record.h"
#include "src/train/training_inputs.h"

namespace annulus {

// A rank's replica of the model, or of a stage of it, with its optimizer, ledger and training step.
struct Replica {
  // All references must outlive the replica.
  Replica(const TrainingInputs& inputs, AllReduce& all_reduce, RunRecord& record);

  AllReduce& all_reduce;
  const std::unique_ptr<PipelineLink> link;  // to the other stages of a pipeline; null if there are none
  const std::optional<PipelinePlan> plan;    // of the stages
  Model model;
  Optimizer optimizer;
  Ledger ledger;
  const std::unique_ptr<Step> step;
  bool holds_state = true;  // that after a whole number of steps, rather than other weights

  // Plans the networks of all batch sizes, so that no step has to plan: the last batch of an epoch is smaller.
  void plan_networks(const TrainingInputs& inputs);

  // Describes everything that the last bits of all-reduced gradients depend on.
  std::string summation(const TrainingInputs& inputs) const;
};

}  // namespace annulus
