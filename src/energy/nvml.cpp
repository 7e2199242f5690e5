// A GPU's energy, as counted by NVML (nvmlDeviceGetTotalEnergyConsumption).

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/cuda/make_cuda_device.h"
#include "src/energy/energy_counter.h"

namespace annulus {

EnergyCounter open_nvml(const EnergyPlace& place) {
  if (!place.gpu) fail("NVML: no GPU is used");
  return [gpu = *place.gpu]() -> EnergyReading {
    const std::optional<double> joules = gpu_joules(gpu);
    if (!joules) fail("NVML does not count it here");
    return {*joules, now_seconds()};
  };
}

}  // namespace annulus
