#include "src/train/pipeline.h"

#include <malloc.h>

#include "kernels/base/error.h"
#include "models/network/stages.h"
#include "src/step/pipeline_schedule.h"

namespace annulus {
namespace {

int replicas_of(const World& world, std::size_t stages) {
  const auto ranks = static_cast<std::size_t>(world.size());
  if (ranks % stages != 0)
    fail("--pipeline {}: {} rank{} cannot be divided among {} stages: use a multiple of {} ranks", stages, ranks,
         ranks == 1 ? "" : "s", stages, stages);
  return static_cast<int>(ranks / stages);
}

}  // namespace

PipelineRanks::PipelineRanks(const World& world, std::size_t stages_)
    : replicas(world.block(replicas_of(world, stages_))), stages(world.across_blocks(replicas.size())) {}

PipelinePlan plan_pipeline(const World& world, Device& device, const Graph& graph, std::size_t stages,
                           std::size_t parts, std::size_t batch, std::size_t arenas, Activity& activity) {
  const Graph cut = planned_graph(graph);
  const std::vector<Range> segments = cut_everywhere(cut);
  const auto costs = measure_segments(world, device, cut, segments, batch, arenas, [&activity] { activity.tick(); });
  malloc_trim(0);  // the segments' memory would stay in the heap, in pieces smaller than the arenas to come
  PipelinePlan plan;
  for (const Range& stage : choose_stages(costs, stages, parts)) {
    const std::size_t in_flight = parts_in_flight(plan.nodes.size(), stages, parts);
    plan.expected.push_back(stage_cost(std::span(costs).subspan(stage.begin, stage.size()), in_flight));
    plan.nodes.push_back({segments[stage.begin].begin, segments[stage.end - 1].end});
    if (stage.begin > 0) plan.cuts.push_back(cut.nodes()[plan.nodes.back().begin].name);
  }
  return plan;
}

}  // namespace annulus
