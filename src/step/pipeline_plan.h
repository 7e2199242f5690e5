#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/world/world.h"
#include "kernels/base/split.h"
#include "models/network/model.h"

namespace annulus {

// The cost of a segment of a graph (cut_everywhere()) for one micro-batch on one rank.
struct SegmentCost {
  double seconds = 0;               // of forward and backward
  std::size_t parameter_bytes = 0;  // of weights, gradients, and what else is kept of each trained value
  std::size_t kept_bytes = 0;       // of activations from forward until backward
  std::size_t passing_bytes = 0;    // of everything else in the activation arena
};

// The cost of a stage, which consists of consecutive segments.
struct StageCost {
  double seconds = 0;     // of a micro-batch
  std::size_t bytes = 0;  // of parameters, and activations of all micro-batches in flight
};
StageCost stage_cost(std::span<const SegmentCost> segments, std::size_t in_flight);

// Measures each segment's forward and backward on this rank's device while the other ranks do the same, and returns the
// mean over the ranks. `graph`: a planned_graph(); `arenas`: number of arenas of the parameters' size that training
// needs. Needs the memory of one segment at a time. Collective.
std::vector<SegmentCost> measure_segments(const World& world, Device& device, const Graph& graph,
                                          std::span<const Range> segments, std::size_t batch, std::size_t arenas,
                                          const Network::Planned& planned);

// Returns the segments of each stage, by dynamic programming. The slowest stage bounds the speed of a pipeline: among
// the partitions in which it takes at most kSlower more than in the fastest one, returns the one whose largest stage
// needs the least memory. `parts`: micro-batches of a step. Throws Error if there are fewer segments than stages.
std::vector<Range> choose_stages(std::span<const SegmentCost> segments, std::size_t stages, std::size_t parts);
constexpr double kSlower = 0.02;

}  // namespace annulus
