#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/step/ledger.h"

namespace annulus {

// What is told of a run after one of its steps. To add a value: a line here and its name in metrics_record.cpp.
struct MetricsRecord {
  enum Value {
    loss,
    accuracy,
    top5_accuracy,
    learning_rate,
    images_per_second,
    gradient_norm,
    step_seconds,
    first_part_seconds,  // of StepTimes, and then the others
    kValues = first_part_seconds + StepTimes::kParts
  };
  static std::string name(std::size_t value);

  std::string_view kind;   // "train": of training steps; "test": of an evaluation; "epoch": of all steps of an epoch
  std::uint64_t step = 0;  // the first is 1
  double epoch = 0;        // epochs done by then
  double time = 0;         // seconds since 1970
  std::array<std::optional<double>, kValues> values{};  // none where the kind has no such thing
};

double seconds_since_1970();  // now

}  // namespace annulus
