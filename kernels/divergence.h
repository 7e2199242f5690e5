#pragma once

namespace annulus {

// Of an Update: notices values that are not finite as it writes them, at no cost, because it has them at hand.
class Divergence {
 public:
  virtual ~Divergence() = default;

  // Returns whether a run() that the device has completed wrote a weight or a statistic that is not finite. Does not
  // wait for the device. Thread-safe.
  virtual bool diverged() const = 0;
};

}  // namespace annulus
