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

}  // namespace

Parameters::Allocate allocate_in(AllReduce& all_reduce) {
  return [&all_reduce](std::size_t bytes) {
    const auto memory = all_reduce.allocate(bytes);
    return DeviceView{memory.data(), memory.size()};
  };
}

Trainer::Trainer(Model& model, AllReduce& all_reduce, Optimizer& optimizer, Ledger& ledger, std::size_t bucket_bytes,
                 Activity& activity, TraceLane* lane)
    : model_(model),
      all_reduce_(all_reduce),
      optimizer_(optimizer),
      ledger_(ledger),
      lane_(lane),
      buckets_(gradient_floats(model.parameters()), plan_buckets(model.parameters(), bucket_bytes), all_reduce),
      activity_(activity) {
  activity_.plan(buckets_.size());
}

void Trainer::cut_buckets(std::size_t bucket_bytes) {
  const Parameters& parameters = model_.parameters();
  buckets_ = GradientBuckets(gradient_floats(parameters), plan_buckets(parameters, bucket_bytes), all_reduce_);
  activity_.plan(buckets_.size());
}

StepMetrics Trainer::step(const Batch& batch, float vote, double begun) {
  const TraceSpan span(lane_, "step", TraceLane::kNone, begun);
  { const TraceSpan input(lane_, "wait for images", TraceLane::kNone, begun); }
  const double input_done = now_seconds();
  ledger_.add(StepTimes::input, input_done - begun);

  begin(vote);
  compute(batch);
  ledger_.add(StepTimes::compute, now_seconds() - input_done);

  StepMetrics found;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    activity_.enter(Activity::Phase::waiting_for_bucket, bucket);
    wait(bucket);
    activity_.enter(Activity::Phase::optimizer, bucket);
    const double summed = now_seconds();
    const TraceSpan update(lane_, "update of bucket", static_cast<std::int64_t>(bucket));
    if (bucket == 0) {  // holds the metrics
      found = metrics();
      if (!std::isfinite(found.loss))
        fail("the loss is {}: the parameters of the step before are the last good ones; lower --lr", found.loss);
    }
    optimizer_.update(buckets_.range(bucket));
    ledger_.add(StepTimes::optimizer, now_seconds() - summed);
  }
  if (all_reduce_.sums()) ledger_.add_waits(buckets_.times());
  ledger_.end_step(now_seconds() - begun);
  return found;
}

double Trainer::rehearse(const Batch& batch) {
  const double begun = now_seconds();
  begin(0);
  compute(batch);
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    activity_.enter(Activity::Phase::waiting_for_bucket, bucket);
    buckets_.wait(bucket);
  }
  return now_seconds() - begun;
}

void Trainer::begin(float vote) {
  const Parameters& parameters = model_.parameters();
  model_.device().upload(std::as_bytes(std::span(&vote, 1)), parameters.gradient(parameters.steering()));
  buckets_.begin_step();
}

// The gradients of this rank's share, sent bucket by bucket as they become final.
void Trainer::compute(const Batch& batch) {
  if (batch.size() == 0) {  // nothing to add to the others' sums but zeros
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
  network.forward([this] { activity_.tick(); });
  activity_.enter(Activity::Phase::backward);
  network.backward(1.0f / static_cast<float>(batch.step.global_batch()), [this](std::size_t gradients) {
    activity_.tick();
    buckets_.ready(gradients);
  });
}

void Trainer::wait(std::size_t bucket) {
  const TraceSpan span(lane_, "wait for bucket", static_cast<std::int64_t>(bucket));
  buckets_.wait(bucket);
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
