#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace annulus {

// Plans the rounds of the local strategy whose length is a time: each rank makes the updates that it is measured to
// complete in that time, so that none waits long for a slower one. Every rank plans the same.
class Pace {
 public:
  Pace(double seconds, std::size_t ranks);

  // Adds what each rank did in a round: its updates, and the seconds that they took. A rank's speed is that of its last
  // rounds, each of which counts half as much as the next one.
  void add(std::span<const double> updates, std::span<const double> seconds);

  // Returns the number of updates of each rank in the next round: at least one, and one in the first rounds.
  std::vector<std::size_t> plan() const;

 private:
  struct Measured {
    double updates = 0, seconds = 0;
  };
  double seconds_;
  std::vector<Measured> ranks_;
};

}  // namespace annulus
