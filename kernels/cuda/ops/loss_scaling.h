#pragma once

#include "kernels/cuda/ops/context.h"
#include "kernels/device.h"

namespace annulus::cuda {

// The loss's scale, in device memory, so that no step waits for what became of the one before.
class DeviceLossScaling final : public LossScaling {
 public:
  explicit DeviceLossScaling(Context& context);

  // For the context. Two powers of 2, and what is not 0 from the first judge() that found a gradient infinite or NaN
  // until conclude().
  const float* scale() const;
  const float* unscale() const;
  const std::uint32_t* skip() const;

  void judge(DeviceView gradients) override;
  void conclude() override;
  State state() override;
  void set_state(const State& state) override;

 private:
  Context& context_;
  Buffer memory_;
};

}  // namespace annulus::cuda
