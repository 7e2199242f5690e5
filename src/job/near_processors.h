#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace annulus {

// Returns the processors of the NUMA node of a PCI device ("0000:19:00.0"), as Linux reports them in `sysfs`: all if
// there is one node, none if nothing is known.
std::vector<int> processors_near(const std::string& pci_device, const std::filesystem::path& sysfs = "/sys");

// Restricts this thread, and those that it creates from now on, to these processors, and with them the memory that they
// touch first to their NUMA node. Does nothing if this thread may not use all of them, because then it was bound by
// somebody who knows better, such as a launcher.
void bind_to(const std::vector<int>& processors);

}  // namespace annulus
