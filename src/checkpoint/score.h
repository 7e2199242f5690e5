#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace annulus {

// A value of an evaluation by which checkpoints are compared and runs end.
enum class Measure { accuracy, top5, loss };

// Result of the evaluation after a step.
struct Score {
  std::uint64_t correct, count;         // images
  std::optional<std::uint64_t> top5{};  // see Evaluation
  std::optional<double> loss{};         // none in checkpoints of earlier versions of the program

  double accuracy() const { return share(correct); }
  std::optional<double> value(Measure measure) const {
    if (measure == Measure::loss) return loss;
    if (measure == Measure::top5) return top5 ? std::optional(share(*top5)) : std::nullopt;
    return accuracy();
  }
  bool operator==(const Score&) const = default;

 private:
  double share(std::uint64_t images) const { return static_cast<double>(images) / static_cast<double>(count); }
};

// NaN is worse than any number.
inline bool is_better(Measure measure, double value, double other) {
  if (std::isnan(other)) return !std::isnan(value);
  return measure == Measure::loss ? value < other : value > other;
}

// Whether both have the value, and the first one's is better.
inline bool is_better(Measure measure, const Score& score, const Score& other) {
  const auto value = score.value(measure), others = other.value(measure);
  return value && others && is_better(measure, *value, *others);
}

}  // namespace annulus
