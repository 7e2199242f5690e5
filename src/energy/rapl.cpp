// The energy of processors and their memory, as counted by RAPL ("running average power limit") of Intel and AMD
// (Linux: Documentation/power/powercap/powercap.rst).

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "src/energy/counter_file.h"
#include "src/energy/energy_counter.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

std::uint64_t read_number(const fs::path& file) {
  const std::string text = read_counter_file(file);
  std::size_t end = 0;
  try {
    const std::uint64_t number = std::stoull(text, &end);
    if (end == text.size()) return number;
  } catch (const std::exception&) {  // reported below
  }
  fail("{}: '{}' is not a number", file.string(), text);
}

// Returns whether a domain counts something that no other domain does: a package has its cores and its graphics, but
// not its memory; "psys" has all of the machine, but on few machines.
bool counts_apart(const std::string& name) {
  return name.starts_with("package") || name == "dram";
}

struct Domain {
  fs::path file;
  std::uint64_t range, last;  // microjoules; the counter restarts at 0 beyond `range`
};

std::vector<Domain> domains_in(const fs::path& tree) {
  std::vector<Domain> domains;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(tree, error)) {
    const fs::path folder = entry.path();
    // "intel-rapl-mmio:0" counts the same package as "intel-rapl:0". AMD's have Intel's name.
    if (!folder.filename().string().starts_with("intel-rapl:") || !counts_apart(read_counter_file(folder / "name")))
      continue;
    domains.push_back({folder / "energy_uj", read_number(folder / "max_energy_range_uj"), 0});
  }
  return domains;
}

// Returns the growth since the last call. REQUIRES: the counter restarted once at most.
std::uint64_t growth(Domain& domain) {
  const std::uint64_t before = std::exchange(domain.last, read_number(domain.file));
  return domain.last >= before ? domain.last - before : domain.range - before + domain.last;
}

}  // namespace

EnergyCounter open_rapl(const EnergyPlace& place) {
  const fs::path tree = place.sysfs / "class/powercap";
  std::vector<Domain> domains = domains_in(tree);
  if (domains.empty()) fail("{}: no RAPL counters", tree.string());
  for (Domain& domain : domains) growth(domain);
  return [domains, microjoules = std::uint64_t{0}]() mutable -> EnergyReading {
    for (Domain& domain : domains) microjoules += growth(domain);
    return {1e-6 * static_cast<double>(microjoules), now_seconds()};
  };
}

}  // namespace annulus
