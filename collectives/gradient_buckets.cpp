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
    const std::size_t size = *past - begin;  // of a parameter larger than a bucket
    const std::size_t block = largest >= line ? line : 1;
    const std::size_t parts = (size + largest / block * block - 1) / (largest / block * block);
    for (std::size_t part = 0; part < parts; ++part) {
      const Range range = split_blocks(size, block, parts, part);
      buckets.push_back({begin + range.begin, begin + range.end});
    }
  }
  return buckets;
}

std::size_t count_deferred(std::span<const Range> buckets, double share) {
  if (buckets.empty()) return 0;
  const double limit = share * static_cast<double>(buckets.back().end);
  std::size_t deferred = 0;
  while (deferred + 1 < buckets.size() && static_cast<double>(buckets[deferred + 1].end - buckets[0].end) <= limit)
    ++deferred;
  return deferred;
}

GradientBuckets::GradientBuckets(Lane& lane, DeviceView gradients, std::vector<Range> buckets, AllReduce& all_reduce,
                                 std::size_t deferred)
    : lane_(&lane),
      gradients_(gradients),
      buckets_(std::move(buckets)),
      all_reduce_(&all_reduce),
      tickets_(buckets_.size()),
      times_(buckets_.size()),
      deferred_(deferred) {
  const std::size_t end = buckets_.empty() ? 0 : buckets_.back().end;
  const std::size_t count = gradients.bytes / sizeof(float);
  if (end != count) fail("the buckets cover {} gradients instead of {}", end, count);
  if (deferred > 0 && deferred >= size())
    fail("cannot defer {} of {} buckets: at least one must not be deferred", deferred, size());
  for (std::size_t bucket = 0; bucket < size(); ++bucket)
    if (bucket == 0 || bucket > deferred) order_.push_back(bucket);
  for (std::size_t bucket = deferred; bucket > 0; --bucket) order_.push_back(bucket);
}

void GradientBuckets::begin_step() {
  sent_ = 0;
}

void GradientBuckets::ready(std::size_t elements) {
  for (; sent_ < size() && range(order_[sent_]).end <= elements; ++sent_) {
    const std::size_t bucket = order_[sent_];
    times_[bucket] = {.ready = lane_->mark(), .wait_begin = {}, .wait_end = {}};
    const bool last = sent_ + 1 == size() && deferred_ == 0;
    tickets_[bucket] = all_reduce_->enqueue(
        gradients_.slice(range(bucket).begin * sizeof(float), range(bucket).size() * sizeof(float)),
        last ? AllReduce::Next::wait : AllReduce::Next::compute, bucket);
  }
}

void GradientBuckets::join(std::size_t bucket) {
  if (tickets_[bucket] == 0) fail("bucket {} was awaited before its gradients were ready", bucket);
  times_[bucket].wait_begin = lane_->mark();
  all_reduce_->join(std::exchange(tickets_[bucket], 0));
  times_[bucket].wait_end = lane_->mark();
}

void GradientBuckets::wait(std::size_t bucket) {
  const AllReduce::Ticket ticket = tickets_[bucket];
  join(bucket);
  all_reduce_->wait(ticket);
}

}  // namespace annulus
