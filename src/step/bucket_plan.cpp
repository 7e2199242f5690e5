#include "src/step/bucket_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/io/bytes.h"

namespace annulus {

std::string to_string(const BucketOptions& buckets) {
  return format_bytes(buckets.bytes) +
         (buckets.deferred > 0 ? fmt::format(", {:.0f} % deferred", 100 * buckets.deferred) : "");
}

namespace {

// A rank whose chunk is everything has nothing to send.
bool is_alone(const AllReduce& all_reduce) {
  constexpr std::size_t count = 1 << 20;
  return all_reduce.info().all_verbs && all_reduce.chunk(count).size() == count;
}

}  // namespace

BucketOptions resolve(BucketOptions options, const Parameters& parameters, const AllReduce& all_reduce) {
  if (options.bytes == 0)
    options.bytes = is_alone(all_reduce) ? kUnsentBucketBytes : default_bucket_bytes(parameters.gradients().bytes);
  return options;
}

std::vector<Range> plan_buckets(const Parameters& parameters, const BucketOptions& options, const AllReduce& all_reduce,
                                std::size_t slots, bool apart) {
  const std::size_t begin = apart ? slots / sizeof(float) : 0;
  std::vector<std::size_t> ends;
  for (const Parameter& p : parameters.updated())
    if (const std::size_t end = (p.offset + p.bytes) / sizeof(float); end > begin) ends.push_back(end - begin);
  std::vector<Range> buckets = cut_buckets(ends, std::max(resolve(options, parameters, all_reduce).bytes, slots));
  for (Range& bucket : buckets) bucket = {begin + bucket.begin, begin + bucket.end};
  if (apart) buckets.insert(buckets.begin(), {0, begin});
  return buckets;
}

Range late_buckets(std::span<const Range> buckets, std::size_t from, std::size_t least) {
  constexpr std::size_t kEarly = 8;  // this part is updated first
  std::size_t first = 0;
  while (first < buckets.size() && buckets[first].begin < from) ++first;
  std::size_t end = buckets.size();
  while (end > first && buckets.back().end - buckets[end - 1].end < buckets.back().end / kEarly) --end;
  const bool worth = end > first && (buckets[end - 1].end - buckets[first].begin) * sizeof(float) >= least;
  return worth ? Range{first, end} : Range{first, first};
}

GradientBuckets cut_gradients(Model& model, AllReduce& all_reduce, const BucketOptions& options, std::size_t slots,
                              const Range& table, const BucketUse& use) {
  // In a large bucket, the step's metrics would be final only when the device has nearly nothing left to do.
  const bool apart = is_alone(all_reduce);
  std::vector<Range> plan = plan_buckets(model.parameters(), options, all_reduce, slots, apart);
  const Range deferred = deferred_buckets(plan, table.end, options.deferred);
  Network::Stops stops;
  const bool marks = all_reduce.info().takes_marks && !use.adds_parts;
  for (std::size_t bucket = 0; bucket < plan.size(); ++bucket) {
    if (use.scatters || (deferred.begin <= bucket && bucket < deferred.end)) stops.forward.push_back(plan[bucket].end);
    (marks ? stops.marks : stops.backward).push_back(plan[bucket].end);
  }
  if (const Range late = late_buckets(plan, table.end, options.late); use.ends_late && late.size() > 0)
    stops.forward = {plan[late.end - 1].end};
  model.stop_at(stops);
  return {model.device(), model.parameters().gradients(), std::move(plan), all_reduce, deferred, use.scatters};
}

}  // namespace annulus
