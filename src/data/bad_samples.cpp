#include "src/data/bad_samples.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <utility>

namespace annulus {

void BadSamples::add(const Batch& batch) {
  constexpr std::size_t kSaid = 10;
  for (const BadSample& bad : batch.bad) {
    if (said_ < kSaid) fmt::print(stderr, "annulus: rank {}: skipped: {}\n", rank_, bad.reason);
    if (++said_ == kSaid) fmt::print(stderr, "annulus: rank {}: further bad samples are only counted\n", rank_);
  }
  count_ += batch.bad.size();
}

std::size_t BadSamples::take_all(const World& world) {
  std::array sum{static_cast<std::int64_t>(std::exchange(count_, 0))};
  world.sum(sum);
  return static_cast<std::size_t>(sum.front());
}

}  // namespace annulus
