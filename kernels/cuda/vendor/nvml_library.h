#pragma once

namespace annulus::cuda {

// Holds the NVML functions that we use, which the driver's library has. The toolkit's header is not needed: these
// functions are the same in all versions. Status 0 is success.
struct Nvml {
  int (*device_by_bus_id)(const char* bus_id, void** device);  // nvmlDeviceGetHandleByPciBusId_v2
  // Millijoules since the driver was loaded.
  int (*total_energy)(void* device, unsigned long long* millijoules);  // nvmlDeviceGetTotalEnergyConsumption
};

// Returns null if the library is missing or does not work. Thread-safe. The first use loads the library.
const Nvml* nvml();

}  // namespace annulus::cuda
