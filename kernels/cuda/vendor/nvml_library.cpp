#include "kernels/cuda/vendor/nvml_library.h"

#include <dlfcn.h>

#include <optional>

namespace annulus::cuda {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::optional<Nvml> load() {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  int (*initialize)() = nullptr;
  Nvml found{};
  const bool works = library != nullptr && find(library, "nvmlInit_v2", initialize) && initialize() == 0 &&
                     find(library, "nvmlDeviceGetHandleByPciBusId_v2", found.device_by_bus_id) &&
                     find(library, "nvmlDeviceGetTotalEnergyConsumption", found.total_energy);
  return works ? std::optional(found) : std::nullopt;
}

}  // namespace

const Nvml* nvml() {
  static const std::optional<Nvml> library = load();
  return library ? &*library : nullptr;
}

}  // namespace annulus::cuda
