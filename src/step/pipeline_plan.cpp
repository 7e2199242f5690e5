#include "src/step/pipeline_plan.h"

#include <algorithm>
#include <limits>

#include "kernels/base/error.h"
#include "src/step/pipeline_schedule.h"

namespace annulus {
namespace {

constexpr int kPasses = 3;  // of which the fastest counts; the first one touches the memory

// The partition of the first segments into some stages.
struct Partition {
  double cost = std::numeric_limits<double>::infinity();  // of the most expensive stage
  std::size_t last = 0;                                   // the first segment of the last stage
};

// Returns the partition whose most expensive stage costs the least. `cost(stage, segments)` may be infinite.
template <class Cost>
std::vector<Range> cheapest(std::size_t segments, std::size_t stages, const Cost& cost) {
  // best[stage][end]: of the segments before `end` into the stages up to this one
  std::vector<std::vector<Partition>> best(stages, std::vector<Partition>(segments + 1));
  for (std::size_t stage = 0; stage < stages; ++stage)
    for (std::size_t end = stage + 1; end <= segments; ++end)
      for (std::size_t begin = stage; begin < (stage == 0 ? 1 : end); ++begin) {
        const double before = stage == 0 ? 0 : best[stage - 1][begin].cost;
        const double worst = std::max(before, cost(stage, Range{begin, end}));
        if (worst < best[stage][end].cost) best[stage][end] = {worst, begin};
      }
  std::vector<Range> ranges(stages);
  for (std::size_t stage = stages, end = segments; stage-- > 0; end = ranges[stage].begin)
    ranges[stage] = {best[stage][end].last, end};
  return ranges;
}

double fastest_pass(Model& model, std::size_t batch) {
  Network& network = model.network(Mode::training, batch);
  Device& device = model.device();
  double fastest = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass <= kPasses; ++pass) {
    const Mark begun = device.mark();
    network.forward();
    network.backward(1.0f / static_cast<float>(batch));
    const Mark ended = device.mark();
    device.finish();
    if (pass > 0) fastest = std::min(fastest, device.seconds(ended) - device.seconds(begun));
  }
  return fastest;
}

SegmentCost measure(Device& device, const Graph& graph, std::size_t batch, const Range& segment, std::size_t arenas,
                    const Network::Planned& planned) {
  Model model(device, graph, Mode::training, batch, {}, planned, {}, segment);
  model.parameters().initialize(1);
  const ActivationPlan& plan = model.network(Mode::training, batch).activation_plan();
  return {.seconds = fastest_pass(model, batch),
          .parameter_bytes = arenas * model.parameters().gradients().bytes,
          .kept_bytes = plan.kept_bytes(),
          .passing_bytes = plan.bytes() - std::min(plan.bytes(), plan.kept_bytes())};
}

}  // namespace

StageCost stage_cost(std::span<const SegmentCost> segments, std::size_t in_flight) {
  StageCost cost;
  std::size_t kept = 0, passing = 0;
  for (const SegmentCost& segment : segments) {
    cost.seconds += segment.seconds;
    cost.bytes += segment.parameter_bytes;
    kept += segment.kept_bytes;
    passing = std::max(passing, segment.passing_bytes);
  }
  cost.bytes += in_flight * (kept + passing);
  return cost;
}

std::vector<SegmentCost> measure_segments(const World& world, Device& device, const Graph& graph,
                                          std::span<const Range> segments, std::size_t batch, std::size_t arenas,
                                          const Network::Planned& planned) {
  std::vector<SegmentCost> costs;
  for (const Range& segment : segments) costs.push_back(measure(device, graph, batch, segment, arenas, planned));
  std::vector<double> seconds;
  for (const SegmentCost& cost : costs) seconds.push_back(cost.seconds / world.size());
  world.sum(std::span(seconds));
  for (std::size_t i = 0; i < costs.size(); ++i) costs[i].seconds = seconds[i];
  return costs;
}

std::vector<Range> choose_stages(std::span<const SegmentCost> segments, std::size_t stages, std::size_t parts) {
  if (segments.size() < stages)
    fail("--pipeline {}: this network can be cut into at most {} stages", stages, segments.size());
  const auto cost_of = [&](std::size_t stage, const Range& range) {
    return stage_cost(segments.subspan(range.begin, range.size()), parts_in_flight(stage, stages, parts));
  };
  const auto seconds = [&](std::size_t stage, const Range& range) { return cost_of(stage, range).seconds; };
  double limit = 0;
  const std::vector<Range> fastest = cheapest(segments.size(), stages, seconds);
  for (std::size_t stage = 0; stage < stages; ++stage) limit = std::max(limit, seconds(stage, fastest[stage]));
  limit *= 1 + kSlower;
  return cheapest(segments.size(), stages, [&](std::size_t stage, const Range& range) {
    const StageCost cost = cost_of(stage, range);
    return cost.seconds <= limit ? static_cast<double>(cost.bytes) : std::numeric_limits<double>::infinity();
  });
}

}  // namespace annulus
