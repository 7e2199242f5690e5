#pragma once

#include <string>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "models/network/model.h"

namespace annulus {

std::string to_string(const BucketOptions& buckets);  // "1 MiB, 25 % deferred"

// Fills in the default size for these parameters.
BucketOptions resolve(BucketOptions options, const Parameters& parameters);

// Cuts the gradients' arena. The first bucket holds the `slots` bytes of MetricsSlots, because a step reads them before
// it updates anything; with `apart` it holds nothing else.
std::vector<Range> plan_buckets(const Parameters& parameters, const BucketOptions& options, std::size_t slots,
                                bool apart);

// Buckets of a synchronous step's gradients. `table`: see tied_table(); forward needs it first, so it is not deferred.
// `scatters`: see GradientBuckets. Stops the model's passes at the buckets' ends.
GradientBuckets cut_gradients(Model& model, AllReduce& all_reduce, const BucketOptions& options, std::size_t slots,
                              const Range& table, bool scatters);

}  // namespace annulus
