#include "src/trainer.h"

#include <algorithm>
#include <cmath>

#include "kernels/clock.h"
#include "kernels/error.h"

namespace annulus {
namespace {

std::span<float> gradient_floats(const Parameters& parameters) {
  const DeviceView view = parameters.gradients();
  return {reinterpret_cast<float*>(view.address), view.bytes / sizeof(float)};
}

std::vector<Range> plan_buckets(const Parameters& parameters, std::size_t bucket_bytes) {
  std::vector<std::size_t> ends;
  for (const Parameter& p : parameters.all()) ends.push_back((p.offset + p.bytes) / sizeof(float));
  // The first bucket holds all metrics: a step reads them from it, before it updates anything.
  const Parameter& metrics = parameters.metrics();
  return cut_buckets(ends, std::max(bucket_bytes, metrics.offset + metrics.bytes));
}

BucketOptions resolve(BucketOptions options, const Parameters& parameters) {
  if (options.bytes == 0) options.bytes = usual_bucket_bytes(parameters.gradients().bytes);
  return options;
}

GradientBuckets make_buckets(const Parameters& parameters, const BucketOptions& options, AllReduce& all_reduce) {
  std::vector<Range> plan = plan_buckets(parameters, options.bytes);
  const std::size_t deferred = count_deferred(plan, options.deferred);
  return {gradient_floats(parameters), std::move(plan), all_reduce, deferred};
}

}  // namespace

Parameters::Allocate allocate_in(AllReduce& all_reduce) {
  return [&all_reduce](std::size_t bytes) {
    const auto memory = all_reduce.allocate(bytes);
    return DeviceView{memory.data(), memory.size()};
  };
}

Trainer::Trainer(Model& model, AllReduce& all_reduce, Optimizer& optimizer, Ledger& ledger,
                 const BucketOptions& buckets, Activity& activity, TraceLane* lane)
    : model_(model),
      all_reduce_(all_reduce),
      optimizer_(optimizer),
      ledger_(ledger),
      lane_(lane),
      activity_(activity),
      bucket_options_(resolve(buckets, model.parameters())),
      buckets_(make_buckets(model.parameters(), bucket_options_, all_reduce)) {
  activity_.plan(buckets_.size());
}

void Trainer::cut_buckets(const BucketOptions& options) {
  bucket_options_ = resolve(options, model_.parameters());
  buckets_ = make_buckets(model_.parameters(), bucket_options_, all_reduce_);
  activity_.plan(buckets_.size());
}

StepMetrics Trainer::step(const Batch& batch, float vote, double begun) {
  const TraceSpan span(lane_, "step", TraceLane::kNone, begun);
  { const TraceSpan input(lane_, "wait for images", TraceLane::kNone, begun); }
  const double input_done = now_seconds();
  ledger_.add(StepTimes::input, input_done - begun);

  finishing_ = 0;
  compute(batch, vote);
  const double computed = now_seconds();
  ledger_.add(StepTimes::compute, computed - input_done - finishing_);
  if (all_reduce_.sums()) ledger_.add_arrival(computed);

  wait(0);  // it holds the metrics
  const StepMetrics found = metrics();
  if (!std::isfinite(found.loss))
    fail("the loss is {}: the parameters of the step before are the last good ones; lower --lr", found.loss);
  update(0);
  finish_undeferred();
  ledger_.end_step(now_seconds() - begun);
  return found;
}

void Trainer::finish() {
  const double begun = now_seconds();
  finish_from(0);
  ledger_.add_between_steps(now_seconds() - begun);
}

double Trainer::rehearse(const Batch& batch) {
  rehearsing_ = true;
  double seconds = 0;
  // The second one begins as steps do: with what the one before has deferred.
  for (int time = buckets_.deferred() > 0 ? 0 : 1; time < 2; ++time) {
    const double begun = now_seconds();
    compute(batch, 0);
    finish(0);
    finish_undeferred();
    seconds = now_seconds() - begun;
  }
  finish_from(0);
  activity_.enter(Activity::Phase::meeting);  // its time is compared with the others'
  rehearsing_ = false;
  return seconds;
}

void Trainer::finish_undeferred() {
  for (std::size_t bucket = buckets_.deferred() + 1; bucket < buckets_.size(); ++bucket) finish(bucket);
  pending_ = buckets_.deferred();
}

// The gradients of this rank's share, sent bucket by bucket as they become final.
void Trainer::compute(const Batch& batch, float vote) {
  if (batch.size() == 0) {  // nothing to add to the others' sums but zeros
    finish_from(0);
    begin_backward(vote);
    const Parameters& parameters = model_.parameters();
    const DeviceView all = parameters.gradients();
    const std::size_t steering = parameters.steering().bytes;
    model_.device().zero(all.slice(steering, all.bytes - steering));
    buckets_.ready(all.bytes / sizeof(float));
    return;
  }
  Network& network = model_.network(Mode::training, batch.size());
  network.load(batch.images, batch.labels);
  activity_.enter(Activity::Phase::forward);
  network.forward([this](std::size_t parameters) {
    activity_.tick();
    finish_from(parameters);
  });
  begin_backward(vote);
  activity_.enter(Activity::Phase::backward);
  network.backward(1.0f / static_cast<float>(batch.step.global_batch()), [this](std::size_t gradients) {
    activity_.tick();
    buckets_.ready(gradients);
  });
}

// From here on gradients are overwritten.
void Trainer::begin_backward(float vote) {
  const Parameters& parameters = model_.parameters();
  model_.device().upload(std::as_bytes(std::span(&vote, 1)), parameters.gradient(parameters.steering()));
  buckets_.begin_step();
}

void Trainer::finish_from(std::size_t parameters) {
  if (pending_ == 0 || buckets_.range(pending_).end <= parameters) return;
  const double begun = now_seconds();
  for (; pending_ > 0 && buckets_.range(pending_).end > parameters; --pending_) finish(pending_);
  activity_.enter(Activity::Phase::forward);
  finishing_ += now_seconds() - begun;
}

void Trainer::finish(std::size_t bucket) {
  wait(bucket);
  update(bucket);
}

void Trainer::wait(std::size_t bucket) {
  activity_.enter(Activity::Phase::waiting_for_bucket, bucket);
  const TraceSpan span(lane_, "wait for bucket", static_cast<std::int64_t>(bucket + 1));
  buckets_.wait(bucket);
  if (all_reduce_.sums() && !rehearsing_) ledger_.add_wait(buckets_.times(bucket));
}

void Trainer::update(std::size_t bucket) {
  if (rehearsing_) return;
  activity_.enter(Activity::Phase::optimizer, bucket);
  const double begun = now_seconds();
  const TraceSpan span(lane_, "update of bucket", static_cast<std::int64_t>(bucket + 1));
  optimizer_.update(buckets_.range(bucket));
  ledger_.add(StepTimes::optimizer, now_seconds() - begun);
}

StepMetrics Trainer::metrics() const {
  const Parameters& parameters = model_.parameters();
  std::array<float, 2> means{};
  float votes = 0;
  model_.device().download(parameters.gradient(parameters.metrics()), std::as_writable_bytes(std::span(means)));
  model_.device().download(parameters.gradient(parameters.steering()), std::as_writable_bytes(std::span(&votes, 1)));
  return {means[0], means[1], votes};
}

}  // namespace annulus
