#pragma once

#include "collectives/all_reduce.h"
#include "kernels/base/trace.h"
#include "models/network/model.h"
#include "src/job/activity.h"
#include "src/step/ledger.h"
#include "src/step/optimizer.h"
#include "src/step/resident_images.h"

namespace annulus {

// What a rank's step works with. All must outlive the step.
struct StepTools {
  Model& model;
  AllReduce& all_reduce;
  Optimizer& optimizer;
  Ledger& ledger;                    // books the times of the step's phases
  Activity& activity;                // says in which phase the rank is
  TraceLane* lane = nullptr;         // records the phases as spans; null: no recording
  ResidentImages* images = nullptr;  // that batches refer to; null: batches have pixels
  AllReduce* within_node = nullptr;  // shares Muon's matrices; null: each rank computes all
};

}  // namespace annulus
