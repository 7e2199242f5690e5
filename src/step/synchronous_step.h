#pragma once

#include <memory>

#include "src/step/gradient_exchange.h"
#include "src/step/gradient_guard.h"
#include "src/step/gradient_stack.h"
#include "src/step/step.h"
#include "src/step/updater.h"

namespace annulus {

// The step of the README's picture: forward, backward that sends each bucket as soon as its gradients are final, and an
// update of each bucket as soon as it has been all-reduced. The share is computed part by part; the gradients of the
// last part are sent, with the sum of the earlier parts'.
class SynchronousStep final : public Step {
 public:
  // `share`: the updates that this rank makes.
  SynchronousStep(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options,
                  std::unique_ptr<UpdateShare> share);

  void finish() override;
  void continue_with(const StepOptions& options) override;
  bool between_steps() const override { return updater_.between_steps(); }
  PartNormProbe* part_norms() override { return measures_parts_ ? &part_norms_ : nullptr; }
  KeptState& kept_state() override { return *share_; }

 private:
  void plan(const StepOptions& options);
  void compute(const Batch& batch, std::span<const BatchPart> parts, const ControlFlags& flags) override;
  StepMetrics conclude() override;
  void write(ControlFlags flags);
  void backward(const Batch& batch, const BatchPart& part);
  void send(std::size_t gradients, const std::optional<Mark>& since);
  bool judge(const Parameter* not_finite);
  StepMetrics metrics();
  void report_sum(std::size_t bucket);

  DeviceView gradients() const { return tools_.model.parameters().gradients(); }

  const BucketOptions bucket_options_;
  const Range table_;
  const std::unique_ptr<GradientExchange> exchange_;
  const std::unique_ptr<GradientGuard> guard_;
  GradientStack stack_;
  const bool measures_parts_;  // the rows of a shared embedding's gradient would be missing
  PartNormProbe part_norms_;
  const std::unique_ptr<UpdateShare> share_;
  Updater updater_;
};

}  // namespace annulus
