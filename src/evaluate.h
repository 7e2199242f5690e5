#pragma once

#include "collectives/world.h"
#include "models/model.h"
#include "src/activity.h"
#include "src/data/dataset.h"
#include "src/data/input_plan.h"

namespace annulus {

struct Evaluation {
  std::size_t count = 0;  // of images that took part
  std::size_t correct = 0;
  std::size_t skipped = 0;  // bad ones
  double loss = 0;          // mean

  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(count); }
};

// The whole data set, each sample once, shared out over the ranks; the same result on every rank. Collective.
// Plans what it needs at the first call for a batch size. `global_batch`: images at once on all ranks, at least as many
// as there are ranks. `activity` is told how it goes.
Evaluation evaluate(const World& world, Model& model, const Dataset& dataset, const InputPlan& input,
                    std::size_t global_batch, Activity& activity);

}  // namespace annulus
