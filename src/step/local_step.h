#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/step/round_step.h"
#include "src/step/update_share.h"

namespace annulus {

// Every rank makes several updates of its own weights; then the mean of the ranks' differences, weighted by their
// samples, updates the common weights. With the outer optimizer "average", the common weights become the mean of the
// ranks' weights (local SGD: Stich, "Local SGD converges fast and communicates little", ICLR 2019). With "nesterov",
// SGD with Nesterov momentum takes the mean difference as a gradient (Douillard et al., "DiLoCo: distributed
// low-communication training of language models", 2023). Momentum and rate are 0.5, not DiLoCo's 0.9 and 0.7: over many
// rounds the weights then move as far as by averaging, so a learning rate for synchronous steps also fits. Each rank's
// optimizer keeps a separate state, until adopt(). Running statistics are a rank's own until finish(), because training
// does not use them.
class LocalStep final : public RoundStep {
 public:
  LocalStep(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options);

  void expect(const StepPlan& next) override;
  void continue_with(const StepOptions& options) override;
  DeviceView gather(DeviceView state) override;
  void adopt(DeviceView gathered, DeviceView state) override { device_.copy(gathered, state); }
  DeviceView outer_velocity() override { return keeps_velocity_ ? velocity_.view() : DeviceView{}; }

 protected:
  void end_part(std::size_t number) override;
  void update(float weight) override;
  void meet() override;

 private:
  LocalStep(const StepTools& tools, const BucketOptions& buckets, const StepOptions& options, DeviceView differences);

  void update_own();
  void write_differences(float weight);
  void update_common(const Range& range);
  void copy_trained(DeviceView from, DeviceView to, const Range& within) const;
  void all_reduce_arena(DeviceView arena);
  void average_statistics();
  Range whole() const { return {0, exchanged_.bytes / sizeof(float)}; }

  const BucketOptions bucket_options_;
  LocalRounds local_;
  const std::vector<Range> trained_, statistics_;  // in floats
  Buffer common_;                                  // the weights without this round's differences
  Buffer begun_;                                   // this rank's weights when it began the round
  Buffer velocity_;                                // of the outer optimizer
  const float rate_;
  const bool keeps_velocity_;
  const std::unique_ptr<Update> outer_;
  bool apart_ = false;  // this rank's weights are not the common ones
  float weight_ = 0;    // of this rank in the last round
};

// The outer optimizers.
const std::vector<std::string>& outer_names();

}  // namespace annulus
