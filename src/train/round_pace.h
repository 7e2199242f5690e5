#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace annulus {

// Plans the rounds of strategies whose length is a time: each rank makes the updates that it is measured to complete in
// that time, so that none waits long for a slower one. Every rank plans the same.
//
// A round takes a whole number of updates of the slowest rank, because this rank has the longest ones: if it could not
// complete the last one in time, it would be idle meanwhile, or all others would wait. Example: in rounds of 2 seconds,
// of ranks whose updates take 0.05 and 0.55 seconds, the slower one makes 4, the other one 44 in the same 2.2 seconds.
class Pace {
 public:
  Pace(double seconds, std::size_t ranks);

  // Adds each rank's updates in a round, and the seconds that they took. A rank's speed is that of the last
  // rounds, each of which counts half as much as the next one.
  void add(std::span<const double> updates, std::span<const double> seconds);

  // Returns the number of updates of each rank in the next round: at least one, and one in the first rounds. No rank is
  // given more than it completes in twice the time.
  std::vector<std::size_t> plan() const;

 private:
  struct Measured {
    double updates = 0, seconds = 0;
    double update_seconds() const { return updates > 0 ? seconds / updates : 0; }  // 0: not known
  };
  double round_seconds() const;

  double seconds_;
  std::vector<Measured> ranks_;
};

}  // namespace annulus
