#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace annulus {

// Compares the seconds that steps compute alone and beside all-reduces, measured in turns with `steps_per_turn` steps
// each: "compute 1.000 -> 1.021 ms beside auto: 2.1 % slower [0.4, 3.0]". The brackets have the 95 % confidence
// interval for the median over turns; if 0 is inside, the text is "no significant difference".
// REQUIRES: both have the same number of complete turns, at least one.
std::string compute_slow_down(std::span<const double> alone, std::span<const double> beside, std::size_t steps_per_turn,
                              const std::string& name);

}  // namespace annulus
