#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace annulus {

// Returns the processors on a PCI device's NUMA node ("0000:19:00.0"), as Linux reports them in `sysfs`: all if there
// is a single node, none if nothing is known.
std::vector<int> processors_near(const std::string& pci_device, const std::filesystem::path& sysfs = "/sys");

// Restricts this thread, and threads that it creates from now on, to these processors, and the memory that they touch
// first to the processors' NUMA node. Does nothing if this thread may not use all of the processors, because then it
// was bound by somebody who knows better, such as a launcher.
void bind_to(const std::vector<int>& processors);

}  // namespace annulus
