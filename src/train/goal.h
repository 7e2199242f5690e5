#pragma once

#include <string>

#include "src/checkpoint/score.h"

namespace annulus {

// The result of an evaluation that ends a run.
struct Goal {
  Measure measure = Measure::accuracy;
  double value = 0;

  bool reached(const Score& score) const;
};

// "accuracy=0.93", "top5=0.99" or "loss=0.2". Throws Error.
Goal parse_goal(const std::string& text);

std::string to_string(const Goal& goal);

// "accuracy", "top5" or "loss".
Measure parse_measure(const std::string& name);
std::string to_string(Measure measure);

}  // namespace annulus
