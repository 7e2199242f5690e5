#include "src/job/near_processors.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <fstream>

namespace annulus {

// The file has ranges: 0-15,32-47.
std::vector<int> processors_near(const std::string& pci_device, const std::filesystem::path& sysfs) {
  std::string device = pci_device;
  std::ranges::transform(device, device.begin(), [](unsigned char c) { return std::tolower(c); });  // CUDA's is not
  std::ifstream file(sysfs / "bus/pci/devices" / device / "local_cpulist");
  std::vector<int> processors;
  for (int first = 0; file >> first;) {
    int last = first;
    if (file.peek() == '-') file.ignore() >> last;
    for (int processor = first; processor <= last; ++processor) processors.push_back(processor);
    file.ignore();  // the comma
  }
  return processors;
}

void bind_to(const std::vector<int>& processors) {
  cpu_set_t allowed, wanted;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  CPU_ZERO(&wanted);
  for (const int processor : processors) {
    if (!CPU_ISSET(static_cast<std::size_t>(processor), &allowed)) return;
    CPU_SET(static_cast<std::size_t>(processor), &wanted);
  }
  if (!processors.empty()) sched_setaffinity(0, sizeof wanted, &wanted);
}

}  // namespace annulus
