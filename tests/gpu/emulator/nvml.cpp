#include <cstdlib>
#include <ctime>

#include "kernels/cuda/vendor/nvml_library.h"

// Replaces NVML: every GPU takes 100 W. With ANNULUS_EMULATED_NVML=missing there is no library.

namespace annulus::cuda {
namespace {

constexpr double kWatts = 100;

int device_by_bus_id(const char* bus_id, void** device) {
  *device = const_cast<char*>(bus_id);
  return 0;
}

int total_energy(void*, unsigned long long* millijoules) {
  std::timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  *millijoules = static_cast<unsigned long long>(1e3 * kWatts * seconds);
  return 0;
}

}  // namespace

const Nvml* nvml() {
  static const Nvml library{device_by_bus_id, total_energy};
  return std::getenv("ANNULUS_EMULATED_NVML") != nullptr ? nullptr : &library;
}

}  // namespace annulus::cuda
