#include "src/step/updater.h"

#include <utility>

#include "kernels/base/error.h"
#include "src/step/bucket_plan.h"

namespace annulus {

Updater::Updater(const StepTools& tools, GradientBuckets& buckets, UpdateShare& share, GradientExchange& exchange,
                 StepClock& clock, const Range& table, float clip_norm, std::function<void(std::size_t)> reduced)
    : tools_(tools),
      device_(tools.model.device()),
      buckets_(buckets),
      share_(share),
      exchange_(exchange),
      clock_(clock),
      table_(table),
      ends_late_(annulus::ends_late(tools, share, clip_norm)),
      reduced_(std::move(reduced)) {
  add_preparations(clip_norm);
}

void Updater::add_preparations(float clip_norm) {
  if (device_.loss_scaling() != nullptr) preparations_.push_back({"--precision fp16", [this] { judge_rest(); }});
  if (clip_norm > 0) preparations_.push_back({"--clip-norm", [this, clip_norm] { tools_.optimizer.clip(clip_norm); }});
  if (share_.measures())
    preparations_.push_back(
        {"--optimizer lars or muon and --strategy sharded", [this] { tools_.optimizer.measure_parameters(); }});
}

void Updater::plan(const BucketOptions& options) {
  if (options.deferred > 0 && !preparations_.empty())
    fail("--defer cannot be used with {}, which needs all gradients before the first update",
         preparations_.front().option);
  share_.plan(
      buckets_, [this](DeviceView values) { sum_norms(values); },
      [this](AllReduce& all_reduce, AllReduce::Ticket ticket) { await(all_reduce, ticket); });
  held_back_.clear();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    held_back_.push_back(!preparations_.empty() || share_.common() || holds_table(bucket));
  late_ = ends_late_ ? late_buckets(buckets_.ranges(), table_.end, options.late) : Range{};
  pending_ = {};
  updating_ = false;
}

void Updater::update() {
  updating_ = true;
  tools_.optimizer.begin_step();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (buckets_.is_deferred(bucket)) continue;
    if (bucket > 0) wait_for(bucket);
    if (!held_back_[bucket])
      update(bucket);
    else
      judge(bucket);
  }
  exchange_.complete();
  prepare();
  update_held_back();
  pending_ = late_.size() > 0 ? late_ : buckets_.deferred();
  if (share_.scatters()) send_weights();
  updating_ = false;
}

// The step counts for the optimizer, too, as it does for a run that is resumed.
void Updater::discard() {
  tools_.optimizer.begin_step();
  for (std::size_t bucket = 1; bucket < buckets_.size(); ++bucket) wait_for(bucket);
  exchange_.complete();
  pending_ = {};
}

void Updater::wait_for(std::size_t bucket) {
  clock_.wait_for(buckets_, bucket, buckets_.size() - 1);
  reduced_(bucket);
}

void Updater::prepare() {
  if (preparations_.empty()) return;
  clock_.activity().enter(Activity::Phase::optimizer);
  clock_.time(StepClock::Kind::optimizer, [&] {
    for (const Preparation& preparation : preparations_) preparation.prepare();
  });
}

// A single gradient that overflows, in any bucket, forbids all updates. (If they are reduce-scattered, a rank has its
// chunks of the sums, and parts of other ranks' chunks.) The last bucket arrives when backward has ended.
void Updater::judge(std::size_t bucket) {
  LossScaling* const scaling = device_.loss_scaling();
  if (scaling == nullptr || holds_table(bucket)) return;
  const DeviceView gradients = slice_of(tools_.model.parameters().gradients(), buckets_.range(bucket));
  clock_.time(StepClock::Kind::optimizer, [&] {
    if (bucket + 1 == buckets_.size()) return scaling->judge(gradients);
    device_.run_beside([&] {
      buckets_.join_beside(bucket);
      scaling->judge(gradients);
    });
  });
}

// A shared table's gradients are complete only after all buckets.
void Updater::judge_rest() {
  LossScaling& scaling = *device_.loss_scaling();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    if (holds_table(bucket)) scaling.judge(slice_of(tools_.model.parameters().gradients(), buckets_.range(bucket)));
  if (tools_.optimizer.sharded()) scaling.agree([this](DeviceView ranks) { sum_norms(ranks); });
  exchange_.agree(scaling);
}

void Updater::update_held_back() {
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    if (!buckets_.is_deferred(bucket) && held_back_[bucket] && !is_late(bucket)) update(bucket);
  early_updated_ = device_.mark();
  if (late_.size() == 0) conclude();
}

void Updater::conclude() {
  if (LossScaling* const scaling = device_.loss_scaling()) scaling->conclude();
}

// Meanwhile the lane computes the next forward's lower layers.
void Updater::update_late() {
  pending_ = {};
  clock_.activity().enter(Activity::Phase::optimizer);
  const Mark begun = device_.mark();
  const LaneSpan span = clock_.span_from(begun, "late updates");
  device_.run_beside([&] {
    device_.await(early_updated_);
    for (std::size_t bucket = late_.begin; bucket < late_.end; ++bucket) share_.update(bucket);
    conclude();
  });
  clock_.add(StepClock::Kind::optimizer, {begun, device_.mark()});
}

// An update that needs only a single bucket's gradients runs beside the rest of backward, and the lane waits for it;
// beside the last bucket there is none.
// Nothing that is then still on the lane reads the bucket's weights: a bucket is sent when the backward passes of all
// its layers are done, and a layer's weights are read in its own passes only.
void Updater::update(std::size_t bucket) {
  clock_.activity().enter(Activity::Phase::optimizer, bucket);
  const Mark begun = device_.mark();
  const LaneSpan span = clock_.span_from(begun, "update of bucket", static_cast<std::int64_t>(bucket + 1));
  if (held_back_[bucket] || bucket + 1 == buckets_.size())
    share_.update(bucket);
  else
    device_.run_beside([&] {
      buckets_.join_beside(bucket);
      share_.update(bucket);
    });
  clock_.add(StepClock::Kind::optimizer, {begun, device_.mark()});
}

void Updater::finish_from(std::size_t parameters) {
  const auto needed = [&] { return pending_.size() > 0 && buckets_.range(pending_.end - 1).end > parameters; };
  if (!needed()) return;
  clock_.time(StepClock::Kind::interruption, [&] {
    if (late_.size() > 0) update_late();
    while (needed()) finish(--pending_.end);
    clock_.activity().enter(Activity::Phase::forward);
  });
}

void Updater::finish(std::size_t bucket) {
  if (buckets_.is_deferred(bucket)) {
    wait_for(bucket);
    update(bucket);
    share_.send_weights(bucket);
  }
  if (share_.scatters()) await_weights(bucket);
}

// Sends the updated weights in the order in which the next forward needs them, and waits for an embedding that is also
// the head, which it needs first. The others are pending.
void Updater::send_weights() {
  std::size_t first = 0;
  for (; first < buckets_.size() && buckets_.range(first).begin < table_.end; ++first) share_.send_weights(first);
  for (std::size_t bucket = buckets_.size(); bucket-- > first;)
    if (!buckets_.is_deferred(bucket)) share_.send_weights(bucket);
  for (std::size_t bucket = 0; bucket < first; ++bucket) await_weights(bucket);
  pending_ = {first, buckets_.size()};
}

void Updater::await_weights(std::size_t bucket) {
  const LaneSpan span = clock_.span("wait for weights of bucket", static_cast<std::int64_t>(bucket + 1));
  clock_.wait_within_pass([&] { share_.await_weights(bucket); });
}

void Updater::sum_norms(DeviceView values) {
  await(tools_.all_reduce,
        tools_.all_reduce.enqueue(values,
                                  {.exact = true, .next = AllReduce::Next::wait, .bucket = AllReduce::kWithinPass}));
}

// Between steps, when metrics are logged, nothing is booked.
void Updater::await(AllReduce& all_reduce, AllReduce::Ticket ticket) {
  const auto join = [&] { all_reduce.join(ticket); };
  if (updating_)
    clock_.add(StepClock::Kind::norms, clock_.wait_within_pass(join));
  else
    join();
}

bool ends_late(const StepTools& tools, const UpdateShare& share, float clip_norm) {
  Device& device = tools.model.device();
  return device.info().records && !share.scatters() && (device.loss_scaling() != nullptr || clip_norm > 0);
}

}  // namespace annulus
