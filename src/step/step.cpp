#include "src/step/step.h"

#include <utility>

#include "kernels/base/subnormals.h"
#include "src/step/passes.h"

namespace annulus {

Step::Step(const StepTools& tools, GradientBuckets buckets, bool meets)
    : tools_(tools),
      device_(tools.model.device()),
      clock_(device_, tools.ledger, tools.activity, tools.lane, tools.all_reduce.info().reduces, meets),
      buckets_(std::move(buckets)) {
  expect_flushed_subnormals();
  tools.activity.plan(buckets_.size());
}

void Step::load_first(const Batch& batch, Passes& passes, const BatchPart& first) {
  const LaneSpan input = clock_.span_of_step("wait for images");
  passes.load(batch, first);
}

// Copies the first part only; later parts are copied while earlier ones compute.
void Step::prefetch(PartPlan& parts) {
  const Batch* const next = hooks.peek_next();
  if (next == nullptr) return;
  const BatchPart first = parts.of(next->step.global_batch(), next->size()).front();
  device_.prefetch(std::as_bytes(samples_of(*next, first)));
}

}  // namespace annulus
