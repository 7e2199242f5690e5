#include "src/import/hold_out.h"

#include <algorithm>
#include <cmath>

#include "src/data/sampler.h"

namespace annulus {
namespace {

constexpr std::uint64_t kHoldOutSeed = 2;  // an order different from ShardLayout's

std::size_t count_to_hold_out(std::size_t samples, double share) {
  return std::min(static_cast<std::size_t>(std::lround(share * static_cast<double>(samples))), samples - 1);
}

}  // namespace

std::vector<std::uint8_t> hold_out(std::span<const std::int32_t> labels, double share) {
  std::vector<std::vector<std::size_t>> of_class;
  for (std::size_t sample = 0; sample < labels.size(); ++sample) {
    const auto label = static_cast<std::size_t>(labels[sample]);
    if (label >= of_class.size()) of_class.resize(label + 1);
    of_class[label].push_back(sample);
  }
  std::vector<std::uint8_t> held_out(labels.size());
  for (std::size_t label = 0; label < of_class.size(); ++label) {
    const std::vector<std::size_t>& samples = of_class[label];
    if (samples.empty()) continue;
    const EpochOrder order(samples.size(), kHoldOutSeed, label);
    for (std::size_t i = 0; i < count_to_hold_out(samples.size(), share); ++i) held_out[samples[order.sample(i)]] = 1;
  }
  return held_out;
}

}  // namespace annulus
