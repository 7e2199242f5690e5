#include "collectives/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"

namespace annulus {

std::size_t default_bucket_bytes(std::size_t gradient_bytes) {
  constexpr std::size_t kBuckets = 8, kSmallest = 64 * 1024, kLargest = 4 << 20;
  return std::clamp(gradient_bytes / kBuckets, kSmallest, kLargest);
}

std::vector<Range> cut_buckets(std::span<const std::size_t> ends, std::size_t bucket_bytes) {
  const std::size_t largest = bucket_bytes / sizeof(float);
  if (largest == 0) fail("a bucket of {} bytes is too small for one gradient; use larger buckets", bucket_bytes);
  constexpr std::size_t line = kCacheLine / sizeof(float);  // all-reduces are faster if lines are not cut
  std::vector<Range> buckets;
  const std::size_t count = ends.empty() ? 0 : ends.back();
  for (std::size_t begin = 0; begin < count; begin = buckets.back().end) {
    const auto past = std::ranges::upper_bound(ends, count - begin > largest ? begin + largest : count);
    const std::size_t end = past == ends.begin() ? 0 : *(past - 1);
    if (end > begin) {
      buckets.push_back({begin, end});
      continue;
    }
    const std::size_t size = *past - begin;  // a parameter larger than a bucket
    const std::size_t block = largest >= line ? line : 1;
    const std::size_t parts = (size + largest / block * block - 1) / (largest / block * block);
    for (std::size_t part = 0; part < parts; ++part) {
      const Range range = split_blocks(size, block, parts, part);
      buckets.push_back({begin + range.begin, begin + range.end});
    }
  }
  return buckets;
}

Range deferred_buckets(std::span<const Range> buckets, std::size_t from, double share) {
  std::size_t first = 1;
  while (first < buckets.size() && buckets[first].begin < from) ++first;
  Range deferred{first, first};
  if (first >= buckets.size()) return deferred;
  const double limit = share * static_cast<double>(buckets.back().end);
  while (deferred.end < buckets.size() &&
         static_cast<double>(buckets[deferred.end].end - buckets[first].begin) <= limit)
    ++deferred.end;
  return deferred;
}

GradientBuckets::GradientBuckets(Lane& lane, DeviceView gradients, std::vector<Range> buckets, AllReduce& all_reduce,
                                 const Range& deferred, bool scatters)
    : lane_(&lane),
      gradients_(gradients),
      buckets_(std::move(buckets)),
      all_reduce_(&all_reduce),
      sent_(buckets_.size()),
      times_(buckets_.size()),
      deferred_(deferred),
      scatters_(scatters) {
  const std::size_t end = buckets_.empty() ? 0 : buckets_.back().end;
  const std::size_t count = gradients.bytes / sizeof(float);
  if (end != count) fail("the buckets cover {} gradients instead of {}", end, count);
  if (deferred.size() > 0 && (deferred.begin == 0 || deferred.end > size()))
    fail("cannot defer buckets {} to {} of {}: the first one must not be deferred", deferred.begin, deferred.end - 1,
         size());
}

void GradientBuckets::begin_step() {
  complete_ = 0;
}

void GradientBuckets::ready(std::size_t elements, const std::optional<Mark>& since) {
  for (; complete_ < size() && range(complete_).end <= elements; ++complete_)
    if (!is_deferred(complete_))
      enqueue(complete_, complete_ + 1 == size() ? AllReduce::Next::wait : AllReduce::Next::compute, since);
}

void GradientBuckets::send_deferred() {
  if (complete_ < size()) fail("deferred buckets were sent before all gradients were ready");
  for (std::size_t bucket = deferred_.end; bucket-- > deferred_.begin;) enqueue(bucket, AllReduce::Next::compute);
}

void GradientBuckets::enqueue(std::size_t bucket, AllReduce::Next next, const std::optional<Mark>& since) {
  times_[bucket] = {.ready = since ? *since : lane_->mark(), .wait_begin = {}, .wait_end = {}};
  sent_[bucket] = {start(bucket, {.next = next, .bucket = bucket, .since = since}), false};
}

AllReduce::Ticket GradientBuckets::start(std::size_t bucket, AllReduce::Request request) {
  const DeviceView values = gradients_.slice(range(bucket).begin * sizeof(float), range(bucket).size() * sizeof(float));
  if (bucket > 0 && scatters_) request.verb = Verb::reduce_scatter;
  return all_reduce_->enqueue(values, request);
}

void GradientBuckets::join(std::size_t bucket) {
  if (std::exchange(sent_[bucket].awaited, true)) fail("bucket {} was awaited before its gradients were ready", bucket);
  times_[bucket].wait_begin = lane_->mark();
  all_reduce_->join(sent_[bucket].ticket);
  times_[bucket].wait_end = lane_->mark();
}

void GradientBuckets::wait(std::size_t bucket) {
  join(bucket);
  all_reduce_->wait(sent_[bucket].ticket);
}

}  // namespace annulus
