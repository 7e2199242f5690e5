#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "collectives/all_reduce.h"
#include "kernels/base/split.h"

namespace annulus {

// How gradients are grouped into buckets.
struct BucketOptions {
  std::size_t bytes = 0;        // maximum bucket size; 0: default_bucket_bytes()
  double deferred = 0;          // maximum deferred share; see GradientBuckets
  std::size_t late = 16 << 20;  // see late_buckets()

  bool operator==(const BucketOptions&) const = default;
};

// Returns the default bucket size: small enough that all-reduces begin early in backward and end soon after it, but no
// smaller, because each all-reduce adds latency.
std::size_t default_bucket_bytes(std::size_t gradient_bytes);

// Cuts an arena whose parameters end at `ends` (in elements, ascending) into consecutive buckets of at most
// `bucket_bytes` each, at parameter boundaries if possible. A parameter larger than a bucket is cut into several
// buckets of about equal size, not shared with other parameters: otherwise its remainder would wait for the parameters
// that are ready after it.
std::vector<Range> cut_buckets(std::span<const std::size_t> ends, std::size_t bucket_bytes);

// Returns the numbers of the buckets, from the first that begins at element `from` or later, that together hold at most
// this share of all elements. Bucket 0 is never included.
Range deferred_buckets(std::span<const Range> buckets, std::size_t from, double share);

// All-reduces a step's gradients bucket by bucket while backward is still computing the lower layers. The arena is laid
// out in the order in which backward finishes gradients, so a bucket is a slice and nothing is copied.
//
// Deferred buckets. If communication takes nearly as long as computation, it continues after backward's end. Then only
// the next step's forward is left to hide it behind. Forward needs the lowest layers' parameters first and the
// uppermost layers' last, although backward finishes the uppermost layers' gradients first. So the uppermost layers'
// buckets may be sent after all other buckets, and awaited only when the next forward reaches their layers. The first
// bucket is not deferred because it holds the step's metrics; nor are the buckets of a head that shares weights with
// the token embedding, because the embedding's rows are sent when backward has ended. The send order is fixed, since
// all ranks must use the same:
//
//    backward       b0   b1   b2   b3   b4   b5
//    sent           b0             b3   b4   b5          b2   b1        two deferred
//    sent           b0   b1             b4   b5   rows   b3   b2        b1 holds an embedding that is also the head
//    next forward                                                b2's layers ... b1's layers
//
// (Peng et al., "A generic communication scheduler for distributed DNN training acceleration", 2019, and Jayarajan et
// al., "Priority-based parameter propagation", 2019, reorder at run time; here it is part of the plan.)
class GradientBuckets {
 public:
  // When these events occurred on the lane.
  struct Times {
    Mark ready;       // this rank's gradients were final
    Mark wait_begin;  // the step had nothing else left to do
    Mark wait_end;    // the all-reduce was complete
  };

  // `lane`: the device's lane, on which gradients become final. `deferred`: the deferred buckets' numbers. `scatters`:
  // a rank needs only its chunks' sums, except in the first bucket.
  GradientBuckets(Lane& lane, DeviceView gradients, std::vector<Range> buckets, AllReduce& all_reduce,
                  const Range& deferred = {}, bool scatters = false);

  std::size_t size() const { return buckets_.size(); }
  const Range& deferred() const { return deferred_; }
  bool is_deferred(std::size_t bucket) const { return deferred_.begin <= bucket && bucket < deferred_.end; }
  const std::vector<Range>& ranges() const { return buckets_; }
  const Range& range(std::size_t bucket) const { return buckets_[bucket]; }
  const Times& times(std::size_t bucket) const { return times_[bucket]; }  // in the last step that sent it

  void begin_step();  // REQUIRES: all buckets from the last step, except for deferred ones, have been waited for
  // Gradients [0, elements) are final: enqueues the buckets that are complete, except for deferred ones. `since`: see
  // AllReduce::Request.
  void ready(std::size_t elements, const std::optional<Mark>& since = {});
  void send_deferred();           // enqueues the deferred buckets. REQUIRES: all gradients are final
  void join(std::size_t bucket);  // later work on the lane sees the bucket's reduced gradients in the arena
  void wait(std::size_t bucket);  // and so does peek()
  // Does so for later work on a lane beside (Device::run_beside()). REQUIRES: join() or wait() was called before.
  void join_beside(std::size_t bucket) const { all_reduce_->join(sent_[bucket].ticket); }

 private:
  struct Sent {
    AllReduce::Ticket ticket = 0;
    bool awaited = true;
  };

  void enqueue(std::size_t bucket, AllReduce::Next next, const std::optional<Mark>& since = {});
  AllReduce::Ticket start(std::size_t bucket, AllReduce::Request request);

  Lane* lane_;
  DeviceView gradients_;
  std::vector<Range> buckets_;
  AllReduce* all_reduce_;
  std::vector<Sent> sent_;  // for each bucket, the last time
  std::vector<Times> times_;
  Range deferred_;
  bool scatters_;
  std::size_t complete_ = 0;  // buckets whose gradients are final in this step
};

}  // namespace annulus
