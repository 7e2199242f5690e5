#pragma once

#include <algorithm>
#include <cstddef>
#include <ranges>

namespace annulus {

// The schedule of a pipeline as pure arithmetic: the passes of one stage in the order in which it runs them. A step's
// batch is computed in parts, its micro-batches. Forward passes need the previous stage's output, backward passes the
// next stage's gradient. "One forward, one backward": a stage runs as many forward passes ahead as there are stages
// after it, then alternates, so it keeps the activations of few parts however many there are.
//
//    stage 0   F0 F1 F2 F3 B0 F4 B1 F5 B2    B3    B4    B5      four stages, six parts
//    stage 1      F0 F1 F2 F3 B0 ...
//    stage 3            F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
//
// If forward and backward of a part take as long in every stage, a step of M parts on S stages takes M + S - 1 times as
// long as a stage's work on one part. Source: D. Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN
// training", 2019, with the flush at the end of a step of "Memory-efficient pipeline-parallel DNN training", 2021.
struct PipelinePass {
  enum class Kind { forward, backward };
  Kind kind = Kind::forward;
  std::size_t part = 0;
  bool operator==(const PipelinePass&) const = default;
};

// The number of parts whose forward pass a stage has run, and not yet their backward pass: at most.
constexpr std::size_t parts_in_flight(std::size_t stage, std::size_t stages, std::size_t parts) {
  return std::min(stages - stage, parts);
}

constexpr auto pipeline_schedule(std::size_t stage, std::size_t stages, std::size_t parts) {
  const std::size_t ahead = parts_in_flight(stage, stages, parts) - 1;  // forward passes before the alternation
  return std::views::iota(std::size_t{0}, 2 * parts) | std::views::transform([=](std::size_t pass) {
           using enum PipelinePass::Kind;
           if (pass < ahead) return PipelinePass{forward, pass};
           if (pass >= 2 * parts - ahead) return PipelinePass{backward, pass - parts};
           const std::size_t alternating = pass - ahead;
           return alternating % 2 == 0 ? PipelinePass{forward, ahead + alternating / 2}
                                       : PipelinePass{backward, alternating / 2};
         });
}

// The share of the time in which a stage computes, if all passes take as long in every stage.
constexpr double pipeline_bound(std::size_t stages, std::size_t parts) {
  return static_cast<double>(parts) / static_cast<double>(parts + stages - 1);
}

}  // namespace annulus
