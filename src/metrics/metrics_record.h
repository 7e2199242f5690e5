#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/step/ledger.h"
#include "src/step/measure.h"

namespace annulus {

// A run's metrics after a step: every Measure, and the values below. To add a value, add a line here and a name in
// metrics_record.cpp.
struct MetricsRecord {
  enum Value : std::size_t {
    loss,
    other_measures,  // in order
    learning_rate = kMeasures.size(),
    images_per_second,
    tokens_per_second,
    mfu,  // see Utilization
    gradient_norm,
    noise_scale,       // see GradientNoise::recent()
    lost_rank,         // its number when the run started
    recovery_seconds,  // from the rank's end, or last sign, until the next step began
    repeated_steps,
    staleness,  // mean, see Accounts
    step_seconds,
    first_part_seconds,  // the parts of StepTimes, in order
    kValues = first_part_seconds + StepTimes::kParts
  };
  static std::string name(std::size_t value);
  static std::size_t value_of(Measure measure);

  // "train": training steps; "validation", "test": an evaluation; "epoch": all its steps; "lost": survivors went on
  std::string_view kind;
  std::uint64_t step = 0;                               // the first is 1
  double epoch = 0;                                     // epochs done by then
  double time = 0;                                      // seconds since 1970
  std::array<std::optional<double>, kValues> values{};  // empty if the kind does not have the value
  std::vector<std::int64_t> staleness_histogram{};      // see Accounts; only in JSON
};

double seconds_since_1970();  // now

}  // namespace annulus
