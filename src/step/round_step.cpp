#include "src/step/round_step.h"

#include <utility>

#include "src/step/tied_embedding.h"

namespace annulus {
namespace {

std::unique_ptr<GradientExchange> make_round_exchange(const StepTools& tools, const StepOptions& options,
                                                      Passes& passes) {
  Model& model = tools.model;
  if (!model.embedding_gradient()) return std::make_unique<GradientExchange>(passes);
  return std::make_unique<TiedEmbedding>(tools, passes, options.global_batch * model.graph().tokens().length);
}

}  // namespace

RoundStep::RoundStep(const StepTools& tools, GradientBuckets buckets, DeviceView exchanged, const StepOptions& options,
                     const RoundOptions& round, bool weights_apart)
    : Step(tools, std::move(buckets), PartPlan(EqualParts{round.batch}), make_tick(tools.activity, nullptr),
           {.many_updates = true, .weights_apart = weights_apart}),
      exchanged_(exchanged),
      metrics_(device_.allocate(slots_.metrics(exchanged).bytes)),
      options_(options),
      exchange_(make_round_exchange(tools, options, passes_)) {}

void RoundStep::expect(const StepPlan& /*next*/) {
  steps_before_ = tools_.optimizer.step();  // now, because another thread may make updates from here on
}

void RoundStep::continue_round(const StepOptions& options, const RoundOptions& round) {
  options_ = options;
  parts_ = PartPlan(EqualParts{round.batch});
  updating_ = false;
  clock_.discard();
}

// Computes each part with the weights that are there for it.
void RoundStep::compute(const Batch& batch, std::span<const BatchPart> parts, const ControlFlags& flags) {
  device_.zero(metrics_.view());
  for (const BatchPart& part : parts) {
    if (part.samples.size() == 0) break;
    if (part.number > 0) {
      hooks.before_part(part.number);
      passes_.load(batch, part);
    }
    compute(batch, part);
    clock_.end_part();  // a GPU always has work, but no more than that of a part
  }
  end_round();
  const std::size_t samples = batch.step.global_batch();
  steps_ = (samples + options_.global_batch - 1) / options_.global_batch;
  share_ = static_cast<float>(batch.size()) / static_cast<float>(samples);
  tools_.optimizer.set_step(steps_before_ + steps_);
  flags_ = flags;
  flags_.diverged = tools_.optimizer.diverged() ? 1.0f : 0.0f;
  send_metrics();
  clock_.end_parts();
}

StepMetrics RoundStep::conclude() {
  wait_for_metrics();
  StepMetrics metrics = slots_.read(exchanged_);
  metrics.steps = steps_;
  metrics.expect_finite(tools_.optimizer.step() == 0);
  updating_ = true;
  update(share_);
  updating_ = false;
  return metrics;
}

void RoundStep::compute(const Batch& batch, const BatchPart& part) {
  const std::size_t samples = mean_over(part);
  begin_part(part.number);
  passes_.forward(part, samples, [](std::size_t) {});
  exchange_->backward(batch, part, samples, [](std::size_t, const std::optional<Mark>&) {});
  const float weight = static_cast<float>(samples) / static_cast<float>(batch.step.global_batch());
  device_.add_scaled(slots_.metrics(parameters().gradients()), weight, metrics_.view());
  end_part(part.number);
}

// Sends a round's metrics. Their bucket may hold gradients, too, which nobody reads.
void RoundStep::send_metrics() {
  device_.zero(exchanged_.slice(0, buckets_.range(0).end * sizeof(float)));
  device_.copy(metrics_.view(), slots_.metrics(exchanged_));
  slots_.write(exchanged_, flags_);
  buckets_.begin_step();
  buckets_.ready(buckets_.range(0).end);
}

void RoundStep::finish() {
  clock_.finish(clock_.time([&] { meet(); }));
}

}  // namespace annulus
