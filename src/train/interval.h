#pragma once

#include <cstdint>
#include <string>

#include "src/data/sampler.h"

namespace annulus {

// How often something is done while training.
struct Interval {
  enum class Unit { steps, epochs, seconds, run };
  Unit unit = Unit::epochs;
  double count = 1;  // a whole number of steps and epochs

  bool operator==(const Interval&) const = default;
};

// "500" or "500steps", "2epochs", "30s", "10min", "1.5h", and "end" for the run's end alone. Throws Error.
Interval parse_interval(const std::string& text);

// Tells at every step's end whether what is done in such intervals is due, the same on every rank.
class Timer {
 public:
  explicit Timer(const Interval& interval);

  // Whether the time has come by this process's clock; of intervals in seconds alone. Ranks' clocks differ: one rank's
  // word must reach all.
  bool time_has_come() const;

  // `number`: of the step that has ended, 1 being the run's first. `time_has_come`: what one rank said of it.
  bool due(std::uint64_t number, const StepPlan& step, bool time_has_come) const;

  void restart();  // the clock; it was done

 private:
  const Interval interval_;
  double begun_;
};

}  // namespace annulus
