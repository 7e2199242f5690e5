#pragma once

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/device.h"

namespace annulus::cuda {

// Keeps the loss's scale in device memory, so that no step waits for the previous step's result.
class DeviceLossScaling final : public LossScaling {
 public:
  explicit DeviceLossScaling(Context& context);

  // For the context. scale() and unscale() are powers of 2. skip() is nonzero from the first judge() that found an
  // infinite or NaN gradient, on any rank that agrees, until conclude().
  const float* scale() const;
  const float* unscale() const;
  const std::uint32_t* skip() const;

  void judge(DeviceView gradients) override;
  void agree(const SumOverRanks& sum) override;
  void conclude() override;
  State state() override;
  void set_state(const State& state) override;

 private:
  Context& context_;
  Buffer memory_, ranks_;  // ranks_: how many ranks found such a gradient, as a float
};

}  // namespace annulus::cuda
