#pragma once

#include <string>

#include "src/step/score.h"

namespace annulus {

// The result of an evaluation that ends a run.
struct Goal {
  Measure measure = Measure::accuracy;
  double value = 0;

  bool reached(const Score& score) const;
};

// "accuracy=0.93", "mae=0.5". Throws Error.
Goal parse_goal(const std::string& text);

std::string to_string(const Goal& goal);

}  // namespace annulus
