#include "src/train/verification.h"

#include "src/train/combinations.h"

namespace annulus {

// Measured on two cores with AVX-512: `annulus train --verify` beside --verify=false. Not measured on GPUs.
double verifying_cost(std::size_t gradient_bytes, double flops, double peak) {
  constexpr double kMeeting = 1e-4;  // seconds of the ranks' comparison
  constexpr double kHashed = 1e10;   // bytes per second
  constexpr double kParts = 1.25;    // of the gradients' bytes: gradients, and parts of weights and states
  constexpr double kReached = 0.6;   // of the peak by fast networks
  const double step = flops / (kReached * peak);
  return (kMeeting + kParts * static_cast<double>(gradient_bytes) / kHashed) / step;
}

bool verifies(const TrainingInputs& inputs, const Replica& replica, const Utilization& utilization) {
  constexpr double kCheap = 0.005;
  const TrainOptions& options = inputs.options;
  if (inputs.world.size() == 1) return false;
  if (options.survival.verify) return *options.survival.verify;
  if (!supports_verify(options) || !inputs.device->info().shares_host_memory || !utilization.peak_flops_per_second)
    return false;
  const double flops = utilization.sample_flops * static_cast<double>(inputs.global_batch);
  return verifying_cost(replica.model.parameters().gradients().bytes, flops, *utilization.peak_flops_per_second) <=
         kCheap;
}

}  // namespace annulus
