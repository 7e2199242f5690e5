#include "src/step/synchronous_step.h"

#include <utility>

#include "src/step/bucket_plan.h"
#include "src/step/tied_embedding.h"

namespace annulus {
namespace {

GradientBuckets cut_for_step(const StepTools& tools, const BucketOptions& buckets, const UpdateShare& share,
                             const StepOptions& options) {
  const bool adds_parts = options.parts > 1 || options.shards > 0;
  return cut_gradients(tools.model, tools.all_reduce, buckets, MetricsSlots(tools.model).bytes(),
                       tied_table(tools.model),
                       {share.scatters(), ends_late(tools, share, options.clip_norm), adds_parts});
}

PartPlan cut_share(const StepOptions& options) {
  if (options.shards > 0) return PartPlan(ShardParts{options.shards, options.ranks, options.rank});
  const EvenParts parts{options.parts};
  if (options.pipeline == nullptr) return PartPlan(parts);
  return PartPlan(parts, options.pipeline->stage(), options.pipeline->stages());
}

}  // namespace

SynchronousStep::SynchronousStep(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options,
                                 std::unique_ptr<UpdateShare> share)
    : Step(tools, cut_for_step(tools, buckets, *share, options), cut_share(options),
           make_tick(tools.activity, options.pipeline), {.meets = options.pipeline == nullptr || options.ranks > 1}),
      bucket_options_(buckets),
      table_(tied_table(tools.model)),
      exchange_(make_exchange(tools_, options, passes_, clock_)),
      guard_(options.finite_gradients
                 ? make_finite_guard(tools.model, [this](const Parameter* one) { return judge(one); })
                 : std::make_unique<GradientGuard>()),
      stack_(device_, tools.all_reduce, gradients(), passes_.written()),
      measures_parts_(table_.size() == 0 || options.shards > 0),
      part_norms_(tools.optimizer),
      share_(std::move(share)),
      updater_(tools_, buckets_, *share_, *exchange_, clock_, table_, options.clip_norm,
               [this](std::size_t bucket) { report_sum(bucket); }) {
  plan(options);
  tools.model.sum_over_ranks([this](DeviceView values) {
    const AllReduce::Ticket ticket =
        tools_.all_reduce.enqueue(values, {.next = AllReduce::Next::wait, .bucket = AllReduce::kWithinPass});
    clock_.add(StepClock::Kind::interruption, clock_.wait_within_pass([&] { tools_.all_reduce.join(ticket); }));
  });
}

void SynchronousStep::plan(const StepOptions& options) {
  if (options.shards > 0)
    stack_.plan_shards(tree_order(options.rank, options.ranks, options.shards));
  else
    stack_.plan_parts(options.parts);
  updater_.plan(bucket_options_);
}

void SynchronousStep::continue_with(const StepOptions& options) {
  parts_ = cut_share(options);
  buckets_ = cut_for_step(tools_, bucket_options_, *share_, options);
  plan(options);
  clock_.discard();
}

// Sends gradients bucket by bucket as they become final.
void SynchronousStep::compute(const Batch& batch, std::span<const BatchPart> parts, const ControlFlags& flags) {
  const std::size_t samples = batch.step.global_batch();
  part_norms_.begin_step(samples);
  stack_.begin(parts.size());
  exchange_->begin(batch, parts.back());
  for (const PipelinePass pass : parts_.schedule()) {
    const BatchPart& part = parts[pass.part];
    if (pass.kind == PipelinePass::Kind::forward) {
      if (part.number > 0) passes_.load(batch, part);
      if (part.last) write(flags);
      passes_.forward(part, samples, [this](std::size_t parameters) { updater_.finish_from(parameters); });
      continue;
    }
    backward(batch, part);
    part_norms_.end_part(part.samples.size());
  }
  exchange_->end();
  buckets_.send_deferred();
}

// Before the last part's passes, between which the lane may have no place for it.
void SynchronousStep::write(ControlFlags flags) {
  flags.diverged = tools_.optimizer.diverged() ? 1.0f : 0.0f;
  slots_.write(gradients(), flags);
}

void SynchronousStep::backward(const Batch& batch, const BatchPart& part) {
  const std::size_t samples = batch.step.global_batch();
  using Since = std::optional<Mark>;
  guard_->begin_part();
  if (!part.last) {
    exchange_->backward(batch, part, samples, [this](std::size_t count, const Since&) {
      part_norms_.ready(count);
      guard_->ready(count);
    });
    return stack_.push();
  }
  stack_.begin_last();
  buckets_.begin_step();
  exchange_->backward(batch, part, samples, [this](std::size_t count, const Since& since) { send(count, since); });
}

// The first `count` gradients of the last part are final.
void SynchronousStep::send(std::size_t count, const std::optional<Mark>& since) {
  const bool measured = part_norms_.ready(count);
  guard_->ready(count);
  stack_.add(count);
  buckets_.ready(count, measured ? std::nullopt : since);
}

bool SynchronousStep::judge(const Parameter* not_finite) {
  bool accepted = false;
  clock_.add(StepClock::Kind::norms, clock_.wait_within_pass([&] { accepted = hooks.judge(not_finite); }));
  return accepted;
}

StepMetrics SynchronousStep::conclude() {
  const StepMetrics found = metrics();
  if (found.control_flags.copy > 0) hooks.before_update();
  if (guard_->accepts())
    updater_.update();
  else
    updater_.discard();
  hooks.updated();
  return found;
}

void SynchronousStep::report_sum(std::size_t bucket) {
  hooks.reduced(bucket, slice_of(gradients(), buckets_.range(bucket)));
}

// Waits for the first bucket, and reads the step's metrics from it.
StepMetrics SynchronousStep::metrics() {
  clock_.wait_for(buckets_, 0, buckets_.size() - 1);
  clock_.settle_last();
  report_sum(0);
  StepMetrics found = slots_.read(gradients());
  auto sums = found.sums();
  exchange_->sum(sums);
  found = StepMetrics::of(sums);
  if (found.diverged()) hooks.diverged();
  found.expect_finite(tools_.optimizer.step() == 0);
  return found;
}

void SynchronousStep::finish() {
  clock_.finish(clock_.time([&] { updater_.finish_from(0); }));
}

}  // namespace annulus
