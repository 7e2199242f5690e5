#include "src/step/step.h"

#include <utility>

#include "kernels/base/subnormals.h"

namespace annulus {

Step::Step(const StepTools& tools, GradientBuckets buckets, const PartPlan& parts, std::function<void()> tick,
           const Traits& traits)
    : tools_(tools),
      device_(tools.model.device()),
      clock_(device_, tools.ledger, tools.activity, tools.lane, tools.all_reduce.info().reduces, traits.meets),
      buckets_(std::move(buckets)),
      slots_(tools.model),
      parts_(parts),
      passes_(tools.model, tools.images, tools.activity, std::move(tick),
              [this](const BatchPart& part, std::size_t count) { hooks.computed(part, count); }),
      traits_(traits) {
  expect_flushed_subnormals();
  tools.activity.plan(buckets_.size());
}

StepMetrics Step::run(const Batch& batch, const ControlFlags& flags, const Mark& begun) {
  hooks.begin(batch);
  StepMetrics metrics;
  clock_.begin(kept(begun));
  {
    const LaneSpan span = clock_.span_of_step("step");
    const std::span<const BatchPart> parts = parts_.of(batch.step.global_batch(), batch.size());
    {
      const LaneSpan input = clock_.span_of_step("wait for images");
      passes_.load(batch, parts.front());
    }
    clock_.loaded(kept(device_.mark()));
    compute(batch, parts, flags);
    clock_.computed();
    prefetch();
    metrics = conclude();
  }
  clock_.end(metrics.steps);
  // Otherwise it may still run on a GPU, which has nothing to do for a moment after many updates.
  if (device_.info().shares_host_memory || traits_.many_updates) clock_.settle_last();
  return metrics;
}

void Step::compute_again(const Batch& all) {
  const BatchPart part{.samples = {0, all.size()}};
  const std::size_t samples = all.step.global_batch();
  passes_.load(all, part);
  passes_.forward(part, samples, [](std::size_t) {});
  passes_.backward(part, samples, [](std::size_t, const std::optional<Mark>&) {});
}

// All-reduces complete in order, so it waits for a further one. No pass would overwrite flipped bits in the padding,
// and sums would spread them to all ranks.
void Step::await_all_reduces() {
  const DeviceView gradients = tools_.model.parameters().gradients();
  tools_.all_reduce.wait(tools_.all_reduce.enqueue(gradients.slice(0, slots_.bytes())));
  device_.zero(gradients);
}

// Copies the next batch's first part only; later parts are copied while earlier ones compute.
void Step::prefetch() {
  const Batch* const next = hooks.peek_next();
  if (next == nullptr) return;
  const BatchPart first = parts_.of(next->step.global_batch(), next->size()).front();
  device_.prefetch(std::as_bytes(samples_of(*next, first)));
}

}  // namespace annulus
