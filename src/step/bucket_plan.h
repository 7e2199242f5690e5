#pragma once

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

// Buckets of a synchronous step's gradients. `table`: see tied_table(); forward needs it first, so it is not deferred.
// `scatters`: see GradientBuckets. Stops the model's passes at the buckets' ends.
GradientBuckets cut_gradients(Model& model, AllReduce& all_reduce, const BucketOptions& options, std::size_t slots,
                              const Range& table, bool scatters);

}  // namespace annulus
