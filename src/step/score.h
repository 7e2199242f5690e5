#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/step/measure.h"

namespace annulus {

// Result of an evaluation. Values that it did not measure are empty, see measures_of().
struct Score {
  std::uint64_t count = 0;  // images or tokens
  // By Measure: a number of samples if it is counted, else the value. Checkpoints of earlier versions of the program
  // have no loss.
  std::array<std::optional<double>, kMeasures.size()> found{};

  std::optional<double>& operator[](Measure measure) { return found[static_cast<std::size_t>(measure)]; }
  const std::optional<double>& operator[](Measure measure) const { return found[static_cast<std::size_t>(measure)]; }

  std::optional<double> value(Measure measure) const;
  bool operator==(const Score&) const = default;
};

// The first of these that was measured is an evaluation's main measure; else the loss is.
inline constexpr std::array kMainMeasures{Measure::f1, Measure::mae, Measure::perplexity, Measure::accuracy};

// What was measured besides the main measure.
std::vector<Measure> further_measures(const Score& score);

// "accuracy 91.65 %": the main measure.
std::string headline(const Score& score);
// "9165 of 10000 images, top-5 99.90 %, loss 0.2434": everything else.
std::string details(const Score& score);

// NaN is worse than any number.
inline bool is_better(Measure measure, double value, double other) {
  if (std::isnan(other)) return !std::isnan(value);
  return info(measure).better == MeasureInfo::Better::lower ? value < other : value > other;
}

// Whether both have the value, and the first one's is better.
inline bool is_better(Measure measure, const Score& score, const Score& other) {
  const auto value = score.value(measure), others = other.value(measure);
  return value && others && is_better(measure, *value, *others);
}

}  // namespace annulus
