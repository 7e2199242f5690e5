#include "src/step/energy.h"

#include <array>

#include "kernels/cuda/make_cuda_device.h"
#include "src/job/gpu_use.h"

namespace annulus {

EnergyMeter::EnergyMeter(const World& world, const Device& device) {
  if (device.info().shares_host_memory) return;
  gpu_ = gpu_of(world);
  counts_ = ranks_on_gpu(world).first;
  begun_ = joules();
}

std::optional<double> EnergyMeter::joules() const {
  return gpu_ ? gpu_joules(*gpu_) : std::nullopt;
}

void EnergyMeter::begin_steps() {
  steps_begun_ = joules().value_or(0);
}

void EnergyMeter::end_steps() {
  steps_ += joules().value_or(steps_begun_) - steps_begun_;
}

std::optional<Energy> EnergyMeter::total(const World& world) const {
  if (!gpu_) return std::nullopt;
  const std::optional<double> now = joules();
  const bool known = begun_ && now;
  std::array<double, 3> sums{known ? 0.0 : 1.0, counts_ ? steps_ : 0, counts_ && known ? *now - *begun_ : 0};
  world.sum(sums);
  return sums[0] > 0 ? std::nullopt : std::optional(Energy{sums[1], sums[2]});
}

}  // namespace annulus
