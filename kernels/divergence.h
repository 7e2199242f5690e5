#pragma once

namespace annulus {

// Notices values that are not finite while an Update writes them, at no cost, because the Update has them at hand.
class Divergence {
 public:
  virtual ~Divergence() = default;

  // Returns whether a run() that the device has completed wrote a weight or a statistic that is not finite. Does not
  // wait for the device. Thread-safe.
  virtual bool diverged() const = 0;
  virtual void forget() = 0;  // earlier values were replaced. REQUIRES: the device has completed all run()s
};

}  // namespace annulus
