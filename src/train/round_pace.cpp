#include "src/train/round_pace.h"

#include <algorithm>
#include <cmath>

namespace annulus {
namespace {

constexpr double kLongest = 2;            // times the requested length: a rank that was stopped must not stop all
constexpr double kNearlyComplete = 0.02;  // of an update: speeds are not measured more accurately

}  // namespace

Pace::Pace(double seconds, std::size_t ranks) : seconds_(seconds), ranks_(ranks) {}

void Pace::add(std::span<const double> updates, std::span<const double> seconds) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    Measured& measured = ranks_[rank];
    measured.updates = measured.updates / 2 + updates[rank];
    measured.seconds = measured.seconds / 2 + seconds[rank];
  }
}

// Rounds down: a rank that waits loses less than all ranks that would wait for it.
std::vector<std::size_t> Pace::plan() const {
  const double seconds = round_seconds();
  std::vector<std::size_t> updates;
  for (const Measured& rank : ranks_) {
    const double each = rank.update_seconds();
    updates.push_back(each > 0 ? static_cast<std::size_t>(std::max(seconds / each + kNearlyComplete, 1.0)) : 1);
  }
  return updates;
}

double Pace::round_seconds() const {
  double slowest = 0;
  for (const Measured& rank : ranks_) slowest = std::max(slowest, rank.update_seconds());
  if (slowest == 0) return seconds_;
  return std::min(std::max(std::round(seconds_ / slowest), 1.0) * slowest, kLongest * seconds_);
}

}  // namespace annulus
