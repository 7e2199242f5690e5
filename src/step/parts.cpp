#include "src/step/parts.h"

#include <algorithm>

namespace annulus {
namespace {

// Calls add(samples) for each part.
template <class Add>
void cut_share(const EvenParts& even, std::size_t /*batch*/, std::size_t share, const Add& add) {
  const std::size_t count = std::clamp<std::size_t>(share, 1, even.most);
  for (std::size_t number = 0; number < count; ++number) add(split(share, count, number));
}

template <class Add>
void cut_share(const ShardParts& all, std::size_t batch, std::size_t /*share*/, const Add& add) {
  const Range own = split(all.shards, all.ranks, all.rank);
  const std::size_t begin = split(batch, all.shards, own.begin).begin;
  for (std::size_t number = own.begin; number < own.end; ++number) {
    const Range shard = split(batch, all.shards, number);
    add(Range{shard.begin - begin, shard.end - begin});
  }
}

template <class Add>
void cut_share(const EqualParts& equal, std::size_t /*batch*/, std::size_t share, const Add& add) {
  std::size_t begin = 0;
  do add(Range{begin, std::min(begin + equal.size, share)});
  while ((begin += equal.size) < share);
}

}  // namespace

std::span<const BatchPart> PartPlan::of(std::size_t batch, std::size_t share) {
  parts_.clear();
  const auto add = [this](const Range& samples) { parts_.push_back({samples, parts_.size()}); };
  std::visit([&](const auto& how) { cut_share(how, batch, share, add); }, cut_);
  parts_.back().last = true;
  for (BatchPart& part : parts_) part.slot = part.number % parts_in_flight(stage_, stages_, parts_.size());
  return parts_;
}

}  // namespace annulus
