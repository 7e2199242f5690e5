#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "src/step/score.h"

namespace annulus::test {

// `found`: numbers of samples or values, see Score.
inline Score score_of(std::uint64_t count, const std::vector<std::pair<Measure, double>>& found) {
  Score score{.count = count};
  for (const auto& [measure, value] : found) score[measure] = value;
  return score;
}

}  // namespace annulus::test
