#include "src/trainer.h"

#include <algorithm>
#include <cmath>

#include "kernels/clock.h"
#include "kernels/error.h"
#include "kernels/lane_span.h"

namespace annulus {
namespace {

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

bool may_defer(Model& model) {
  return model.device().loss_scaling() == nullptr;
}

GradientBuckets make_buckets(Model& model, const BucketOptions& options, AllReduce& all_reduce) {
  const Parameters& parameters = model.parameters();
  std::vector<Range> plan = plan_buckets(parameters, options.bytes);
  const std::size_t deferred = count_deferred(plan, options.deferred);
  if (deferred > 0 && !may_defer(model))
    fail("--defer cannot be used with --precision fp16, where no parameter is updated before all sums are known");
  Network::Stops stops;
  for (std::size_t bucket = 0; bucket < plan.size(); ++bucket) {
    if (bucket > 0 && bucket <= deferred) stops.forward.push_back(plan[bucket].end);
    stops.backward.push_back(plan[bucket].end);
  }
  model.stop_at(stops);
  return {model.device(), parameters.gradients(), std::move(plan), all_reduce, deferred};
}

}  // namespace

Parameters::Allocate allocate_in(AllReduce& all_reduce) {
  return [&all_reduce](std::size_t bytes) { return all_reduce.allocate(bytes); };
}

Trainer::Trainer(Model& model, AllReduce& all_reduce, Optimizer& optimizer, Ledger& ledger,
                 const BucketOptions& buckets, Activity& activity, TraceLane* lane)
    : model_(model),
      device_(model.device()),
      all_reduce_(all_reduce),
      optimizer_(optimizer),
      ledger_(ledger),
      lane_(lane),
      activity_(activity),
      bucket_options_(resolve(buckets, model.parameters())),
      buckets_(make_buckets(model, bucket_options_, all_reduce)) {
  activity_.plan(buckets_.size());
}

bool Trainer::may_defer() const {
  return annulus::may_defer(model_);
}

void Trainer::cut_buckets(const BucketOptions& options) {
  bucket_options_ = resolve(options, model_.parameters());
  buckets_ = make_buckets(model_, bucket_options_, all_reduce_);
  activity_.plan(buckets_.size());
}

StepMetrics Trainer::step(const Batch& batch, float vote, const Mark& begun) {
  StepMetrics metrics;
  books_.begun = begun;
  {
    const LaneSpan span(device_, lane_, "step", TraceLane::kNone, begun);
    {
      const LaneSpan input(device_, lane_, "wait for images", TraceLane::kNone, begun);
      load(batch);
    }
    books_.loaded = device_.mark();
    compute(batch, vote);
    books_.computed = device_.mark();

    wait(0);  // it holds the metrics
    settle(last_books_);
    metrics = read_metrics();
    if (!std::isfinite(metrics.loss))
      fail("the loss is {}: the parameters of the step before are the last good ones; lower --lr", metrics.loss);
    optimizer_.begin_step();
    if (device_.loss_scaling() != nullptr) {
      update_if_finite();
    } else {
      update(0);
      finish_undeferred();
    }
    books_.open = true;
    books_.ended = device_.mark();
  }
  if (lane_ != nullptr) books_.spans = lane_->spans().size();
  std::swap(books_, last_books_);
  if (device_.shares_host_memory()) settle(last_books_);  // all of it is done
  return metrics;
}

void Trainer::finish() {
  const Mark begun = device_.mark();
  finish_from(0);
  const Mark ended = device_.mark();
  device_.finish();
  settle(last_books_);
  if (lane_ != nullptr) books_.spans = lane_->spans().size();
  settle(books_);
  ledger_.add_between_steps(device_.seconds(ended) - device_.seconds(begun));
}

// Into the ledger. What was not part of a step has only its waits and updates in it.
void Trainer::settle(Books& books) {
  if (books.open) {
    double finishing = 0;
    for (const Books::Part& part : books.finishing) finishing += seconds(part);
    const double loaded = device_.seconds(books.loaded), computed = device_.seconds(books.computed);
    ledger_.add(StepTimes::input, loaded - device_.seconds(books.begun));
    ledger_.add(StepTimes::compute, computed - loaded - finishing);
    if (all_reduce_.sums()) ledger_.add_arrival(computed);
  }
  for (const GradientBuckets::Times& wait : books.waits)
    ledger_.add_wait(device_.seconds(wait.ready), device_.seconds(wait.wait_begin), device_.seconds(wait.wait_end));
  for (const Books::Part& part : books.updates) ledger_.add(StepTimes::optimizer, seconds(part));
  if (books.open) ledger_.end_step(device_.seconds(books.ended) - device_.seconds(books.begun));
  if (lane_ != nullptr) annulus::settle(device_, *lane_, books.spans);
  books.open = false;
  books.finishing.clear();
  books.waits.clear();
  books.updates.clear();
}

double Trainer::rehearse(const Batch& batch) {
  rehearsing_ = true;
  double seconds = 0;
  // The last one begins as steps do: with what the one before has deferred, and of a device that records work with the
  // recordings that it makes in the second.
  for (int time = device_.records() ? -1 : buckets_.deferred() > 0 ? 0 : 1; time < 2; ++time) {
    const double begun = now_seconds();
    load(batch);
    compute(batch, 0);
    finish(0);
    finish_undeferred();
    device_.finish();
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

void Trainer::load(const Batch& batch) {
  if (batch.size() > 0) model_.network(Mode::training, batch.size()).load(batch.images, batch.labels);
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
  const Mark begun = device_.mark();
  for (; pending_ > 0 && buckets_.range(pending_).end > parameters; --pending_) finish(pending_);
  activity_.enter(Activity::Phase::forward);
  if (!rehearsing_) books_.finishing.push_back({begun, device_.mark()});
}

void Trainer::finish(std::size_t bucket) {
  wait(bucket);
  update(bucket);
}

// Of the first bucket until this thread can read what a step has found, of the others until the lane can go on.
void Trainer::wait(std::size_t bucket) {
  activity_.enter(Activity::Phase::waiting_for_bucket, bucket);
  const LaneSpan span(device_, lane_, "wait for bucket", static_cast<std::int64_t>(bucket + 1));
  if (bucket == 0)
    buckets_.wait(bucket);
  else
    buckets_.join(bucket);
  if (all_reduce_.sums() && !rehearsing_) books_.waits.push_back(buckets_.times(bucket));
}

void Trainer::update(std::size_t bucket) {
  if (rehearsing_) return;
  activity_.enter(Activity::Phase::optimizer, bucket);
  const Mark begun = device_.mark();
  const LaneSpan span(device_, lane_, "update of bucket", static_cast<std::int64_t>(bucket + 1), begun);
  optimizer_.update(buckets_.range(bucket));
  books_.updates.push_back({begun, device_.mark()});
}

// One gradient of any bucket that does not fit forbids the update of all.
void Trainer::update_if_finite() {
  LossScaling& scaling = *device_.loss_scaling();
  for (std::size_t bucket = 1; bucket < buckets_.size(); ++bucket) wait(bucket);
  scaling.judge(model_.parameters().gradients());
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) update(bucket);
  scaling.conclude();
}

StepMetrics Trainer::read_metrics() const {
  const Parameters& parameters = model_.parameters();
  std::array<float, 2> means{};
  float votes = 0;
  device_.peek(parameters.gradient(parameters.metrics()).slice(0, sizeof means),
               std::as_writable_bytes(std::span(means)));
  device_.peek(parameters.gradient(parameters.steering()).slice(0, sizeof votes),
               std::as_writable_bytes(std::span(&votes, 1)));
  return {means[0], means[1], votes};
}

}  // namespace annulus
