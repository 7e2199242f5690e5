#pragma once

#include <span>
#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "models/network/model.h"

namespace annulus {

std::string to_string(const BucketOptions& buckets);  // "1 MiB, 25 % deferred"

// The default size if there is a single rank. Nothing is sent, so buckets only let updates begin in backward; and each
// bucket ends a captured segment, which costs an H200 as much time as updating 12 MiB.
constexpr std::size_t kUnsentBucketBytes = 64 << 20;

// Fills in the default size for these parameters and this all-reduce.
BucketOptions resolve(BucketOptions options, const Parameters& parameters, const AllReduce& all_reduce);

// Cuts the gradients' arena. The first bucket holds the `slots` bytes of MetricsSlots, because a step reads them before
// it updates anything; with `apart` it holds nothing else.
std::vector<Range> plan_buckets(const Parameters& parameters, const BucketOptions& options, const AllReduce& all_reduce,
                                std::size_t slots, bool apart);

// Returns the buckets that may be updated while the next forward already computes the lower layers,
// if a step's first update needs all gradients: from the first bucket that begins at element `from` or later, up to the
// lowest layers', at least an eighth, which are updated before. None if they have fewer than `least` bytes: each
// stop in forward ends a captured segment.
Range late_buckets(std::span<const Range> buckets, std::size_t from, std::size_t least);

// What a synchronous step does with buckets.
struct BucketUse {
  bool scatters = false;    // see GradientBuckets
  bool ends_late = false;   // see Updater
  bool adds_parts = false;  // adds earlier parts' gradients before a bucket is sent
};

// Buckets of a synchronous step's gradients. `table`: see tied_table(); forward needs it first, so it is not deferred.
// Stops the model's passes at the buckets' ends; in backward only if there is something to do, else a mark is enough.
GradientBuckets cut_gradients(Model& model, AllReduce& all_reduce, const BucketOptions& options, std::size_t slots,
                              const Range& table, const BucketUse& use);

}  // namespace annulus
