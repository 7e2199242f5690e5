#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/all_reduce.h"
#include "kernels/split.h"

namespace annulus {

// Cuts an arena whose parameters end at `ends` (in elements, ascending) into consecutive buckets of at most
// `bucket_bytes` each, at parameters' ends where possible; a parameter larger than a bucket is cut into several.
std::vector<Range> cut_buckets(std::span<const std::size_t> ends, std::size_t bucket_bytes);

// Sends a step's gradients bucket by bucket while backward is still computing the lower layers'. The arena lies in
// the order in which backward finishes it, so a bucket is a slice of it: nothing is copied together.
class GradientBuckets {
 public:
  // When each thing happened, in now_seconds().
  struct Times {
    double ready = 0;       // this rank's gradients of the bucket were final
    double wait_begin = 0;  // the step had nothing else left to do
    double wait_end = 0;    // the sum was there
  };

  GradientBuckets(std::span<float> gradients, std::vector<Range> buckets, AllReduce& all_reduce);

  std::size_t size() const { return buckets_.size(); }
  const Range& range(std::size_t bucket) const { return buckets_[bucket]; }
  std::span<const Times> times() const { return times_; }  // of the current step

  void begin_step();
  void ready(std::size_t elements);  // gradients [0, elements) are final: enqueues the buckets that end there or before
  void wait(std::size_t bucket);     // until the bucket's sum over all ranks is in the arena

 private:
  std::span<float> gradients_;
  std::vector<Range> buckets_;
  AllReduce* all_reduce_;
  std::vector<AllReduce::Ticket> tickets_;
  std::vector<Times> times_;
  std::size_t enqueued_ = 0;
};

}  // namespace annulus
