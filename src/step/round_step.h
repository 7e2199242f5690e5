#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "src/step/gradient_exchange.h"
#include "src/step/round_options.h"
#include "src/step/step.h"

namespace annulus {

// A round, which counts as the number of steps of the global batch that its samples would make: every rank computes its
// share part by part, and updates separate weights, or weights that all ranks share, with each part. Ranks meet at the
// end, where the metrics are all-reduced.
class RoundStep : public Step, public KeptState {
 public:
  // `exchanged`: the arena whose buckets are all-reduced after a round; the first one holds the metrics.
  RoundStep(const StepTools& tools, GradientBuckets buckets, DeviceView exchanged, const StepOptions& options,
            const RoundOptions& round, bool weights_apart);

  void expect(const StepPlan& next) override;
  void finish() override;
  bool between_steps() const override { return !updating_; }
  KeptState& kept_state() override { return *this; }

 protected:
  // Before a part's forward pass.
  virtual void begin_part(std::size_t /*number*/) {}
  // Returns the number of samples of whose mean a part's gradients are a share.
  virtual std::size_t mean_over(const BatchPart& part) const { return part.samples.size(); }
  // After the part's backward pass.
  virtual void end_part(std::size_t number) = 0;
  virtual void end_round() {}
  // After the metrics were read. `weight`: this rank's share of the round's samples.
  virtual void update(float /*weight*/) {}
  // Gives all ranks the same weights. Collective.
  virtual void meet() {}

  void continue_round(const StepOptions& options, const RoundOptions& round);
  void send_metrics();
  virtual void wait_for_metrics() { clock_.wait_for(buckets_, 0, 0); }
  float share() const { return share_; }  // this rank's, of the round's samples

  Parameters& parameters() const { return tools_.model.parameters(); }
  const StepOptions& options() const { return options_; }
  const DeviceView exchanged_;
  Buffer metrics_;  // means over the round so far, each part's with its weight

 private:
  void compute(const Batch& batch, std::span<const BatchPart> parts, const ControlFlags& flags) override;
  StepMetrics conclude() override;
  void compute(const Batch& batch, const BatchPart& part);

  StepOptions options_;
  const std::unique_ptr<GradientExchange> exchange_;
  ControlFlags flags_;
  float share_ = 0;
  std::size_t steps_ = 0;  // as which this round counts
  std::uint64_t steps_before_ = 0;
  bool updating_ = false;  // some parameters belong to the next round
};

}  // namespace annulus
