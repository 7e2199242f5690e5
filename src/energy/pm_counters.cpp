// A node's energy with GPUs, as counted by HPE Cray's pm_counters ten times a second: "25432 J 1475578513543190 us", or
// on earlier systems without the time (https://github.com/Cray-HPE/docs-csm,
// operations/power_management/User_Access_to_Compute_Node_Power_Data.md).

#include <sstream>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "src/energy/counter_file.h"
#include "src/energy/energy_counter.h"

namespace annulus {

EnergyCounter open_pm_counters(const EnergyPlace& place) {
  return [file = place.sysfs / "cray/pm_counters/energy"]() -> EnergyReading {
    std::istringstream text(read_counter_file(file));
    double joules = 0, microseconds = 0;
    std::string unit, unit_of_time;
    if (!(text >> joules >> unit) || unit != "J") fail("{}: '{}' is not a number of joules", file.string(), text.str());
    const bool is_stamped = text >> microseconds >> unit_of_time && unit_of_time == "us";
    return {joules, is_stamped ? 1e-6 * microseconds : now_seconds()};
  };
}

}  // namespace annulus
