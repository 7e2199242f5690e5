#pragma once

#include <cstdint>
#include <string>

#include "src/data/sampler.h"

namespace annulus {

// How often something is done during training.
struct Interval {
  enum class Unit { steps, epochs, seconds, run };
  Unit unit = Unit::epochs;
  double count = 1;  // a whole number of steps and epochs

  bool operator==(const Interval&) const = default;
};

// "500" or "500steps", "2epochs", "30s", "10min", "1.5h", and "end" for the run's end alone. Throws Error.
Interval parse_interval(const std::string& text);
std::string to_string(const Interval& interval);  // "20 steps", "2 s"

// Decides at the end of every step whether a periodic action is due. The decision is the same on every rank.
class Timer {
 public:
  explicit Timer(const Interval& interval);

  // Whether an interval in seconds has passed by this process's clock. Ranks' clocks differ, so one rank's result must
  // be broadcast to all.
  bool time_has_come() const;

  // `steps`: the run's steps that have ended since the last call; `step`: the last step's plan.
  // `time_has_come`: one rank's time_has_come().
  bool due(const Range& steps, const StepPlan& step, bool time_has_come) const;

  void restart();  // restarts the clock after the action

 private:
  const Interval interval_;
  double begun_;
};

}  // namespace annulus
