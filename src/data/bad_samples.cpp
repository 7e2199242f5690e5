#include "src/data/bad_samples.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>

namespace annulus {

std::size_t BadSamples::report(const Batch& batch) {
  constexpr std::size_t kSaid = 10;
  for (const BadSample& bad : batch.bad) {
    if (said_ < kSaid) fmt::print(stderr, "annulus: rank {}: skipped: {}\n", rank_, bad.reason);
    if (++said_ == kSaid) fmt::print(stderr, "annulus: rank {}: further bad samples are only counted\n", rank_);
  }
  return batch.bad.size();
}

std::size_t skipped_on_all_ranks(const World& world, std::size_t skipped) {
  std::array sum{static_cast<std::int64_t>(skipped)};
  world.sum(sum);
  return static_cast<std::size_t>(sum.front());
}

}  // namespace annulus
