#pragma once

#include <cstddef>

#include "collectives/world/world.h"
#include "kernels/update.h"
#include "models/graph.h"
#include "models/zoo.h"
#include "src/data/dataset.h"
#include "src/data/input_plan.h"
#include "src/step/trainer.h"
#include "src/train/train_options.h"

namespace annulus {

// What a run is made of, as its options and its data say. All throw Error where they do not go together.

// What a model must know of the data; label smoothing and the like are as usual.
Task task_of(const DatasetInfo& info, const InputPlan& input);
Task task_of(const DatasetInfo& info, const InputPlan& input, const TrainOptions& options);

Graph graph_of(const World& world, const TrainOptions& options, const Task& task);
UpdateRule update_rule(const TrainOptions& options);
StepOptions step_options(const TrainOptions& options);
std::size_t global_batch_of(const World& world, const TrainOptions& options);

// Ranks that synchronize in the middle of a pass must all make it, equally often. `images`: of a step.
void expect_same_passes(const World& world, const TrainOptions& options, std::size_t images);

}  // namespace annulus
