#include "collectives/gradient_buckets.h"

#include <algorithm>

#include "kernels/clock.h"
#include "kernels/error.h"

namespace annulus {

std::vector<Range> cut_buckets(std::span<const std::size_t> ends, std::size_t bucket_bytes) {
  const std::size_t largest = bucket_bytes / sizeof(float);
  if (largest == 0) fail("a bucket of {} bytes does not hold one gradient; ask for larger buckets", bucket_bytes);
  std::vector<Range> buckets;
  const std::size_t count = ends.empty() ? 0 : ends.back();
  for (std::size_t begin = 0; begin < count; begin = buckets.back().end) {
    const std::size_t limit = count - begin > largest ? begin + largest : count;
    const auto past = std::ranges::upper_bound(ends, limit);
    const std::size_t last_end = past == ends.begin() ? 0 : *(past - 1);
    buckets.push_back({begin, last_end > begin ? last_end : limit});
  }
  return buckets;
}

GradientBuckets::GradientBuckets(std::span<float> gradients, std::vector<Range> buckets, AllReduce& all_reduce)
    : gradients_(gradients),
      buckets_(std::move(buckets)),
      all_reduce_(&all_reduce),
      tickets_(buckets_.size()),
      times_(buckets_.size()) {
  const std::size_t end = buckets_.empty() ? 0 : buckets_.back().end;
  if (end != gradients.size()) fail("the buckets hold {} gradients where there are {}", end, gradients.size());
}

void GradientBuckets::begin_step() {
  enqueued_ = 0;
  std::ranges::fill(times_, Times{});
}

void GradientBuckets::ready(std::size_t elements) {
  for (; enqueued_ < size() && range(enqueued_).end <= elements; ++enqueued_) {
    times_[enqueued_].ready = now_seconds();
    const auto next = enqueued_ + 1 == size() ? AllReduce::Next::wait : AllReduce::Next::compute;
    tickets_[enqueued_] =
        all_reduce_->enqueue(gradients_.subspan(range(enqueued_).begin, range(enqueued_).size()), next);
  }
}

void GradientBuckets::wait(std::size_t bucket) {
  if (bucket >= enqueued_) fail("bucket {} was waited for before its gradients were ready", bucket);
  times_[bucket].wait_begin = now_seconds();
  all_reduce_->wait(tickets_[bucket]);
  times_[bucket].wait_end = now_seconds();
}

}  // namespace annulus
