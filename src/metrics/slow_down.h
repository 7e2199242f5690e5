#pragma once

#include <optional>
#include <span>
#include <string>

#include "src/metrics/results.h"

namespace annulus {

// A run's last epochs take longer than the second, the first warm epoch. All times are per step.
struct SlowDown {
  std::size_t reference;  // the reference epoch
  std::size_t epochs;     // how many last epochs are compared with it
  double share;           // 0.34: they take 34 % longer
  StepTimes::Part part;   // the part that grew most
  double part_before_seconds, part_after_seconds;

  std::string line() const;
};

// Compares the last two epochs with the second. Returns nothing unless each takes over 10 % longer: a temporary load on
// the machine rarely lasts for two epochs. Incomplete epochs, and epochs with less than a second or 20 steps, do not
// count.
std::optional<SlowDown> find_slow_down(std::span<const EpochResult> epochs);

}  // namespace annulus
