#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/device.h"

namespace annulus {

// Predicts weights. The next steps repeat a part of the last one, `momentum` times of it, then `momentum` squared
// times, and so on. So a gradient that is computed with predicted weights and used some steps later fits the weights
// which it updates better than one of weights from before these steps; without, momentum and late gradients together
// make the weights swing (Hakimi, Barkai, Gabel, Schuster, "Taming momentum in a distributed asynchronous environment",
// 2019).
class LookAhead {
 public:
  // Predicts ranges of an array of `count` floats, `steps` steps ahead. The device must share the host's memory.
  LookAhead(Device& device, std::size_t count, const std::vector<Range>& ranges, float momentum, std::size_t steps);

  // Remembers the weights before a step.
  void remember(std::span<const float> weights);
  // Returns the prediction of the weights after that step, until the next call. Only the ranges are valid. REQUIRES:
  // the weights before it were remembered since the last call.
  std::span<const float> predict(std::span<const float> weights);

 private:
  const std::vector<Range> ranges_;
  const float share_;  // of the last step
  Buffer weights_;     // the remembered weights, then the predicted ones
};

}  // namespace annulus
