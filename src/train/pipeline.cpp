#include "src/train/pipeline.h"

#include <malloc.h>

#include <algorithm>

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

// Returns the segments of stages that begin at these layers; nothing if no segments do.
std::optional<std::vector<Range>> stages_at(const std::vector<std::string>& cuts, const Graph& graph,
                                            const std::vector<Range>& segments) {
  std::vector<Range> stages{{0, segments.size()}};
  for (const std::string& cut : cuts) {
    const auto begins = [&](const Range& segment) { return graph.nodes()[segment.begin].name == cut; };
    const auto begin = std::ranges::find_if(segments.begin() + static_cast<std::ptrdiff_t>(stages.back().begin) + 1,
                                            segments.end(), begins);
    if (begin == segments.end()) return std::nullopt;
    stages.back().end = static_cast<std::size_t>(begin - segments.begin());
    stages.push_back({stages.back().end, segments.size()});
  }
  return stages;
}

}  // namespace

PipelineRanks::PipelineRanks(const World& world, std::size_t stages_)
    : replicas(world.block(replicas_of(world, stages_))), stages(world.across_blocks(replicas.size())) {}

PipelinePlan plan_pipeline(const World& world, Device& device, const Graph& graph, std::size_t stages,
                           std::size_t parts, std::size_t batch, std::size_t arenas, Activity& activity,
                           const std::vector<std::string>& cuts) {
  const Graph cut = planned_graph(graph);
  const std::vector<Range> segments = cut_everywhere(cut);
  const auto costs = measure_segments(world, device, cut, segments, batch, arenas, [&activity] { activity.tick(); });
  malloc_trim(0);  // the segments' memory would stay in the heap, in pieces smaller than the arenas to come
  PipelinePlan plan;
  const auto given = cuts.size() + 1 == stages ? stages_at(cuts, cut, segments) : std::nullopt;
  for (const Range& stage : given ? *given : choose_stages(costs, stages, parts)) {
    const std::size_t in_flight = parts_in_flight(plan.nodes.size(), stages, parts);
    plan.expected.push_back(stage_cost(std::span(costs).subspan(stage.begin, stage.size()), in_flight));
    plan.nodes.push_back({segments[stage.begin].begin, segments[stage.end - 1].end});
    if (stage.begin > 0) plan.cuts.push_back(cut.nodes()[plan.nodes.back().begin].name);
  }
  return plan;
}

}  // namespace annulus
