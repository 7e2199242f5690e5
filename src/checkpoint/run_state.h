#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "kernels/device.h"
#include "src/data/sampler.h"
#include "src/step/score.h"

namespace annulus {

// What a run carries from step to step, and from a checkpoint to the run that resumes it; parameters and the
// optimizer's states are separate. Equal on all ranks, but for the duration: rank 0 broadcasts it as bytes. To add a
// number, add it here and to kRunStateFields, and use it. Checkpoints store the scores by themselves.
struct RunState {
  std::uint64_t step = 0;                  // steps done
  Cursor cursor;                           // next training sample
  std::uint64_t ranks = 0;                 // this and the next four are as in the last checkpoint
  std::uint64_t milliseconds = 0;          // the run's duration, all parts together, by each rank's clock
  std::optional<std::uint64_t> crossover;  // see AllReduceInfo
  std::uint64_t shards = 0;                // from --shards; 0: the run has none
  std::uint64_t threads = 0;               // per rank; only counts if there are shards, since their bits depend on it
  std::optional<bool> gpu_decodes;         // whether the GPU decodes JPEG images; none: that was not a choice
  std::optional<LossScaling::State> loss_scaling;
  std::uint64_t evaluations_since_best = 0;
  std::uint64_t rate_reductions = 0;  // see Schedule
  std::optional<Score> score;         // the current parameters', if they were evaluated
  std::optional<Score> best;          // over all checkpoints; follows from them, so no checkpoint stores it
};
static_assert(std::is_trivially_copyable_v<RunState>, "it is broadcast as bytes");

// A number in the state as checkpoints store it: an integer.
struct RunStateField {
  const char* name;
  bool required;
  std::optional<std::uint64_t> (*get)(const RunState& state);
  void (*set)(RunState& state, std::uint64_t value);
};

namespace run_state {

template <class T>
T& made(std::optional<T>& value) {
  return value ? *value : value.emplace();
}

}  // namespace run_state

// clang-format off
inline constexpr std::array<RunStateField, 13> kRunStateFields{{
    {"step", true, [](const RunState& s) { return std::optional(s.step); },
     [](RunState& s, std::uint64_t v) { s.step = v; }},
    {"epoch", true, [](const RunState& s) { return std::optional<std::uint64_t>(s.cursor.epoch); },
     [](RunState& s, std::uint64_t v) { s.cursor.epoch = v; }},
    {"position", true, [](const RunState& s) { return std::optional<std::uint64_t>(s.cursor.position); },
     [](RunState& s, std::uint64_t v) { s.cursor.position = v; }},
    {"ranks", true, [](const RunState& s) { return std::optional(s.ranks); },
     [](RunState& s, std::uint64_t v) { s.ranks = v; }},
    {"milliseconds", true, [](const RunState& s) { return std::optional(s.milliseconds); },
     [](RunState& s, std::uint64_t v) { s.milliseconds = v; }},
    {"crossover_bytes", false, [](const RunState& s) { return s.crossover; },
     [](RunState& s, std::uint64_t v) { s.crossover = v; }},
    {"shards", false, [](const RunState& s) { return std::optional(s.shards); },
     [](RunState& s, std::uint64_t v) { s.shards = v; }},
    {"shard_threads", false, [](const RunState& s) { return std::optional(s.threads); },
     [](RunState& s, std::uint64_t v) { s.threads = v; }},
    {"gpu_decodes", false,
     [](const RunState& s) { return s.gpu_decodes ? std::optional<std::uint64_t>(*s.gpu_decodes) : std::nullopt; },
     [](RunState& s, std::uint64_t v) { s.gpu_decodes = v != 0; }},
    {"loss_scale", false,
     [](const RunState& s) {
       return s.loss_scaling ? std::optional(static_cast<std::uint64_t>(s.loss_scaling->scale)) : std::nullopt;
     },
     [](RunState& s, std::uint64_t v) { run_state::made(s.loss_scaling).scale = static_cast<float>(v); }},
    {"good_steps", false,
     [](const RunState& s) {
       return s.loss_scaling ? std::optional<std::uint64_t>(s.loss_scaling->good_steps) : std::nullopt;
     },
     [](RunState& s, std::uint64_t v) { run_state::made(s.loss_scaling).good_steps = static_cast<std::uint32_t>(v); }},
    {"evaluations_since_best", false, [](const RunState& s) { return std::optional(s.evaluations_since_best); },
     [](RunState& s, std::uint64_t v) { s.evaluations_since_best = v; }},
    {"rate_reductions", false, [](const RunState& s) { return std::optional(s.rate_reductions); },
     [](RunState& s, std::uint64_t v) { s.rate_reductions = v; }},
}};
// clang-format on

}  // namespace annulus
