#include "src/step/look_ahead.h"

#include "kernels/base/host_memory.h"
#include "kernels/cpu/loops/elementwise.h"

namespace annulus {
namespace {

// momentum + momentum^2 + ... + momentum^steps
float repeated(float momentum, std::size_t steps) {
  float sum = 0;
  for (std::size_t step = 0; step < steps; ++step) sum = momentum * (1 + sum);
  return sum;
}

}  // namespace

LookAhead::LookAhead(Device& device, std::size_t count, const std::vector<Range>& ranges, float momentum,
                     std::size_t steps)
    : ranges_(ranges), share_(repeated(momentum, steps)), weights_(device.allocate(count * sizeof(float))) {}

void LookAhead::remember(std::span<const float> weights) {
  for (const Range& range : ranges_)
    cpu::copy(weights.subspan(range.begin, range.size()), floats(weights_.view()).subspan(range.begin, range.size()));
}

std::span<const float> LookAhead::predict(std::span<const float> weights) {
  const std::span<float> predicted = floats(weights_.view());
  for (const Range& range : ranges_)
    cpu::move_towards(weights.subspan(range.begin, range.size()), predicted.subspan(range.begin, range.size()),
                      1 + share_);
  return predicted;
}

}  // namespace annulus
