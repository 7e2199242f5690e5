#include "src/train/pace.h"

#include <algorithm>

namespace annulus {

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
  std::vector<std::size_t> updates;
  for (const Measured& rank : ranks_)
    updates.push_back(rank.seconds > 0 ? static_cast<std::size_t>(std::max(seconds_ * rank.updates / rank.seconds, 1.0))
                                       : 1);
  return updates;
}

}  // namespace annulus
