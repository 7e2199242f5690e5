#include "src/job/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace annulus {
namespace {

bool overlap(const cpu_set_t& a, const cpu_set_t& b) {
  cpu_set_t both;
  CPU_AND(&both, &a, &b);
  return CPU_COUNT(&both) > 0;
}

bool shares_processors(const std::vector<cpu_set_t>& masks, std::size_t rank) {
  for (std::size_t other = 0; other < masks.size(); ++other)
    if (other != rank && overlap(masks[rank], masks[other])) return true;
  return false;
}

std::string binding_option(const std::string& mpi, int processors) {
  if (mpi.starts_with("Open MPI")) return fmt::format("mpirun --map-by slot:PE={} --bind-to core", processors);
  return fmt::format("mpiexec -bind-to core:{}", processors);
}

}  // namespace

// The kernel leaves out processors that the cpuset forbids. A new thread asks, so that this thread stays bound.
cpu_set_t processors_if_unbound() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::jthread([&allowed] {
    cpu_set_t all;
    std::memset(&all, 0xFF, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    sched_getaffinity(0, sizeof allowed, &allowed);
  }).join();
  return allowed;
}

std::string binding_warning(const std::vector<cpu_set_t>& masks, const cpu_set_t& unbound, const std::string& mpi) {
  cpu_set_t together;
  CPU_ZERO(&together);
  for (const cpu_set_t& mask : masks) CPU_OR(&together, &together, &mask);
  const int bound = CPU_COUNT(&together), processors = CPU_COUNT(&unbound);
  int sharing = 0;
  for (std::size_t rank = 0; rank < masks.size(); ++rank) sharing += shares_processors(masks, rank) ? 1 : 0;
  if (bound >= processors || sharing == 0) return "";
  const int each = std::max(processors / static_cast<int>(masks.size()), 1);
  return fmt::format(
      "{} of {} ranks on this node are bound to the same processors ({} of {} are used): start them with {}", sharing,
      masks.size(), bound, processors, binding_option(mpi, each));
}

}  // namespace annulus
