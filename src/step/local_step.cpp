#include "src/step/local_step.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "src/step/bucket_plan.h"

namespace annulus {
namespace {

// The outer optimizer. Weights move by the mean difference of a round as if it were their gradient.
struct Outer {
  Sgd rule;
  float rate;
};

Outer parse_outer(const std::string& name) {
  if (name == "average") return {{}, 1};
  if (name == "nesterov") return {{.momentum = 0.5f, .nesterov = true}, 0.5f};
  fail("unknown outer optimizer '{}'", name);
}

// The trained parameters, or the running statistics.
std::vector<UpdateSegment> segments_of(const Parameters& parameters, bool statistics) {
  std::vector<UpdateSegment> segments;
  for (const Parameter& p : parameters.updated())
    if (statistics ? p.role == Role::statistic : p.trained())
      segments.push_back({.range = {p.offset / sizeof(float), (p.offset + p.bytes) / sizeof(float)}, .role = p.role});
  return segments;
}

// Segments without gaps become one range.
std::vector<Range> joined(const std::vector<UpdateSegment>& segments) {
  std::vector<Range> ranges;
  for (const UpdateSegment& segment : segments)
    if (!ranges.empty() && ranges.back().end == segment.range.begin)
      ranges.back().end = segment.range.end;
    else
      ranges.push_back(segment.range);
  return ranges;
}

// The first bucket holds the metrics only: they are sent before the differences.
GradientBuckets cut_differences(const StepTools& tools, const BucketOptions& options, DeviceView differences) {
  return {tools.model.device(), differences,
          plan_buckets(tools.model.parameters(), options, tools.all_reduce, MetricsSlots(tools.model).bytes(), true),
          tools.all_reduce};
}

DeviceView allocate_differences(const StepTools& tools) {
  return tools.all_reduce.allocate(tools.model.parameters().gradients().bytes);
}

}  // namespace

const std::vector<std::string>& outer_names() {
  static const std::vector<std::string> names{"average", "nesterov"};
  return names;
}

LocalStep::LocalStep(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options)
    : LocalStep(tools, buckets, options, allocate_differences(tools)) {}

LocalStep::LocalStep(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options,
                     DeviceView differences)
    : RoundStep(tools, cut_differences(tools, buckets, differences), differences, options,
                std::get<LocalRounds>(options.strategy).round, true),
      bucket_options_(buckets),
      local_(std::get<LocalRounds>(options.strategy)),
      trained_(joined(segments_of(parameters(), false))),
      statistics_(joined(segments_of(parameters(), true))),
      common_(device_.allocate(differences.bytes)),
      begun_(device_.allocate(differences.bytes)),
      velocity_(device_.allocate(differences.bytes)),
      rate_(parse_outer(local_.outer).rate),
      keeps_velocity_(parse_outer(local_.outer).rule.momentum > 0),
      outer_(device_.plan(parse_outer(local_.outer).rule, {common_.view(), differences, {}, {velocity_.view()}},
                          segments_of(parameters(), false))) {}

void LocalStep::continue_with(const StepOptions& options) {
  local_ = std::get<LocalRounds>(options.strategy);
  continue_round(options, local_.round);
  buckets_ = cut_differences(tools_, bucket_options_, exchanged_);
  apart_ = false;
}

void LocalStep::expect(const StepPlan& next) {
  RoundStep::expect(next);
  if (std::exchange(apart_, true)) return;
  for (const Buffer* to : {&common_, &begun_}) copy_trained(parameters().weights(), to->view(), whole());
}

void LocalStep::end_part(std::size_t /*number*/) {
  clock_.work(Activity::Phase::optimizer, StepClock::Kind::optimizer, [&] { update_own(); });
}

void LocalStep::update_own() {
  tools_.optimizer.begin_step();
  LossScaling* const scaling = device_.loss_scaling();
  if (scaling != nullptr) scaling->judge(parameters().gradients());
  if (options().clip_norm > 0) tools_.optimizer.clip(options().clip_norm);
  tools_.optimizer.update(whole());
  if (scaling != nullptr) scaling->conclude();
}

void LocalStep::update(float weight) {
  tools_.activity.enter(Activity::Phase::optimizer);
  clock_.time(StepClock::Kind::optimizer, [&] { write_differences(weight); });
  buckets_.ready(whole().end);
  for (std::size_t bucket = 1; bucket < buckets_.size(); ++bucket) {
    clock_.wait_for(buckets_, bucket, bucket);
    tools_.activity.enter(Activity::Phase::optimizer, bucket);
    const LaneSpan span = clock_.span("update of bucket", static_cast<std::int64_t>(bucket + 1));
    clock_.time(StepClock::Kind::optimizer, [&] { update_common(buckets_.range(bucket)); });
  }
}

// Writes this rank's differences times `weight`.
void LocalStep::write_differences(float weight) {
  weight_ = weight;
  for (const Range& range : trained_) {
    const DeviceView difference = slice_of(begun_.view(), range);
    device_.add_scaled(slice_of(parameters().weights(), range), -1, difference);
    device_.scale(difference, weight, slice_of(exchanged_, range));
  }
}

void LocalStep::update_common(const Range& range) {
  outer_->run(range, rate_, 1);
  for (const DeviceView to : {parameters().weights(), begun_.view()}) copy_trained(common_.view(), to, range);
  parameters().weights_changed(range);
}

// Running statistics become the mean of the ranks'.
void LocalStep::meet() {
  const LaneSpan span = clock_.span("wait for weights");
  clock_.wait_within_pass([&] {
    if (!std::exchange(apart_, false)) return;
    copy_trained(common_.view(), parameters().weights(), whole());
    average_statistics();
    parameters().weights_changed();
  });
}

DeviceView LocalStep::gather(DeviceView state) {
  const DeviceView mean = parameters().gradients();
  device_.scale(state, 1 / static_cast<float>(local_.round.ranks), mean);
  all_reduce_arena(mean);
  return mean;
}

void LocalStep::copy_trained(DeviceView from, DeviceView to, const Range& within) const {
  for (const Range& range : trained_) {
    const Range part{std::max(range.begin, within.begin), std::min(range.end, within.end)};
    if (part.begin < part.end) device_.copy(slice_of(from, part), slice_of(to, part));
  }
}

void LocalStep::all_reduce_arena(DeviceView arena) {
  AllReduce::Ticket last = 0;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    last = tools_.all_reduce.enqueue(slice_of(arena, buckets_.range(bucket)), {.bucket = bucket});
  tools_.all_reduce.join(last);
}

// In one array, because there are many short ones: in the memory of the gradients, which are not needed now.
void LocalStep::average_statistics() {
  const DeviceView gradients = parameters().gradients();
  const auto each = [&](auto visit) {
    std::size_t begin = 0;
    for (const Range& range : statistics_) {
      visit(slice_of(parameters().weights(), range), slice_of(gradients, {begin, begin + range.size()}));
      begin += range.size();
    }
    return begin;
  };
  const std::size_t count = each([&](DeviceView own, DeviceView mean) { device_.scale(own, weight_, mean); });
  if (count == 0) return;
  AllReduce& all_reduce = tools_.all_reduce;
  all_reduce.join(all_reduce.enqueue(slice_of(gradients, {0, count}), {.next = AllReduce::Next::wait}));
  each([&](DeviceView own, DeviceView mean) { device_.copy(mean, own); });
}

}  // namespace annulus
