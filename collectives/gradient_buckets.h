#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/all_reduce.h"
#include "kernels/base/split.h"

namespace annulus {

// How gradients are put together.
struct BucketOptions {
  std::size_t bytes = 0;  // of a bucket, at most; 0: usual_bucket_bytes()
  double deferred = 0;    // share of the gradients, at most; see GradientBuckets

  bool operator==(const BucketOptions&) const = default;
};

// So many that sums begin early in backward and end soon after it, but no more: every sum has its latencies.
std::size_t usual_bucket_bytes(std::size_t gradient_bytes);

// Cuts an arena whose parameters end at `ends` (in elements, ascending) into consecutive buckets of at most
// `bucket_bytes` each, at parameters' ends where possible. A parameter larger than a bucket is cut into several of
// about the same size, and does not share them: what is left of it would wait for the parameters that are ready after
// it.
std::vector<Range> cut_buckets(std::span<const std::size_t> ends, std::size_t bucket_bytes);

// How many of the first buckets, without the very first, hold no more than this share of all elements together.
std::size_t count_deferred(std::span<const Range> buckets, double share);

// Sends a step's gradients bucket by bucket while backward is still computing the lower layers'. The arena lies in
// the order in which backward finishes it, so a bucket is a slice of it: nothing is copied together.
//
// Deferred buckets. Summing can begin when backward does, and where it takes nearly as long as computing, it goes on
// after backward's end. Nothing is left then to hide it behind, but for the next step's forward: that needs the lowest
// layers' parameters first and the uppermost's, whose gradients were ready first, last. So the uppermost layers'
// buckets may be sent after all others, and awaited only when the next forward reaches their layers. (The very first
// one is not deferred: it holds what a step has found.) The order in which buckets are sent is fixed, as all ranks must
// have the same:
//
//    backward       b0   b1   b2   b3   b4   b5
//    sent           b0             b3   b4   b5   b2   b1        two deferred
//    next forward                                      b2's layers ... b1's layers
//
// (Peng et al., "A generic communication scheduler for distributed DNN training acceleration", 2019, and Jayarajan et
// al., "Priority-based parameter propagation", 2019, reorder at run time; here it is part of the plan.)
class GradientBuckets {
 public:
  // When each thing happened on the lane.
  struct Times {
    Mark ready;       // this rank's gradients of the bucket were final
    Mark wait_begin;  // the step had nothing else left to do
    Mark wait_end;    // the sum was there
  };

  // `lane`: the device's, on which gradients become final. Buckets 1 to `deferred` are deferred.
  GradientBuckets(Lane& lane, DeviceView gradients, std::vector<Range> buckets, AllReduce& all_reduce,
                  std::size_t deferred = 0);

  std::size_t size() const { return buckets_.size(); }
  std::size_t deferred() const { return deferred_; }
  const Range& range(std::size_t bucket) const { return buckets_[bucket]; }
  const Times& times(std::size_t bucket) const { return times_[bucket]; }  // of the last step that sent it

  void begin_step();                 // all of the last step's buckets must have been waited for
  void ready(std::size_t elements);  // gradients [0, elements) are final: enqueues what may now be sent
  void join(std::size_t bucket);     // from here on the lane finds the bucket's sum over all ranks in the arena
  void wait(std::size_t bucket);     // and so does peek()

 private:
  Lane* lane_;
  DeviceView gradients_;
  std::vector<Range> buckets_;
  AllReduce* all_reduce_;
  std::vector<AllReduce::Ticket> tickets_;
  std::vector<Times> times_;
  std::size_t deferred_;
  std::vector<std::size_t> order_;  // in which they are sent
  std::size_t sent_ = 0;            // of order_, in this step
};

}  // namespace annulus
