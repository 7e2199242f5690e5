#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "collectives/world/world.h"
#include "models/network/model.h"
#include "src/job/activity.h"
#include "src/step/pipeline_plan.h"

namespace annulus {

// The ranks of a run with a pipeline of S stages: a grid of S rows, each with the D replicas of one stage.
//
//    stage 0    ranks 0 1 2       the all-reduces of a stage are among its neighbouring ranks, which are likely to be
//    stage 1    ranks 3 4 5       on one node; ranks 0 and 3 compute the same samples
struct PipelineRanks {
  // Throws Error unless the stages divide the ranks. Collective.
  PipelineRanks(const World& world, std::size_t stages);

  World replicas;  // the ranks with this rank's stage
  World stages;    // the ranks that compute this rank's samples, in the order of stages
};

// The stages that were chosen for a run, the same on all ranks.
struct PipelinePlan {
  std::vector<Range> nodes;         // of each stage, in planned_graph()
  std::vector<std::string> cuts;    // the first layer of each stage after the first
  std::vector<StageCost> expected;  // of each stage
};

// Measures the network's segments on all ranks, and chooses the stages. `parts`: micro-batches, of `batch` samples;
// `arenas`: see measure_segments(); `cuts`: the stages' first layers, if the graph can be cut there. Collective.
PipelinePlan plan_pipeline(const World& world, Device& device, const Graph& graph, std::size_t stages,
                           std::size_t parts, std::size_t batch, std::size_t arenas, Activity& activity,
                           const std::vector<std::string>& cuts = {});

}  // namespace annulus
