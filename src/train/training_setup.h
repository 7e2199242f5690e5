#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "collectives/all_reduce.h"
#include "collectives/world/world.h"
#include "kernels/device.h"
#include "kernels/update.h"
#include "models/graph/graph.h"
#include "models/zoo/zoo.h"
#include "src/data/input_plan.h"
#include "src/data/samples.h"
#include "src/step/optimizer.h"
#include "src/step/step_options.h"
#include "src/train/train_options.h"

namespace annulus {

// Builds a run's parts from options and data. All functions throw Error if these are inconsistent.

// Returns whether masked tokens are predicted with this loss, --loss or a checkpoint's.
inline bool is_masked(const std::string& loss) {
  return loss == to_string(Loss::masked);
}

// Returns the properties of the data that a model depends on; without options, label smoothing etc. have their
// defaults.
Task task_of(const DatasetInfo& info, const InputPlan& input, const std::string& loss);
Task task_of(const Samples& training, const InputPlan& input, const TrainOptions& options);

// `onnx`: see NetworkSource.
Graph graph_of(const World& world, const TrainOptions& options, const std::string& onnx, const Task& task);
// What differs for the parameters that --lr-for, --weight-decay and --freeze-after name. `steps`: the whole run's.
Optimizer::FactorsOf update_factors(const TrainOptions& options, const Graph& graph, std::uint64_t steps);
Averaging averaging_of(const TrainOptions& options, std::uint64_t steps);
StepOptions step_options(const World& world, const TrainOptions& options, std::size_t global_batch);
// `crossover`: see make_all_reduce(). Collective.
std::unique_ptr<AllReduce> open_all_reduce(const World& world, const TrainOptions& options, Device& device,
                                           std::optional<std::size_t> crossover = std::nullopt);
// Returns the all-reduce with which a node's ranks share Muon's matrices; null if each rank computes all. Collective.
std::unique_ptr<AllReduce> open_within_node(const World& world, const TrainOptions& options, Device& device);
// Returns the number of ranks that compute, the first ones; the others only serve (--servers). Of the ranks that are
// left after others were lost, at least one computes.
std::size_t workers_of(const World& world, const TrainOptions& options);
std::size_t global_batch_of(const World& world, const TrainOptions& options);

// Ranks that synchronize within a pass must all make the same number of passes. `images`: per step. Throws Error if
// they do not.
void expect_same_passes(const World& world, const TrainOptions& options, std::size_t images);

}  // namespace annulus
