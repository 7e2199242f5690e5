#include "src/energy/energy_meter.h"

#include <algorithm>
#include <array>
#include <functional>

#include "kernels/base/error.h"
#include "src/energy/counter_file.h"
#include "src/energy/energy_sources.h"
#include "src/job/gpu_use.h"
#include "src/job/machine.h"

namespace annulus {
namespace {

// Returns a text that ranks have in common if they run on the same machine, in containers as well.
std::string machine() try { return read_counter_file("/proc/sys/kernel/random/boot_id"); } catch (const Error&) {
  return host_name();
}

bool first_on_machine(const World& world) {
  const std::uint64_t own = std::hash<std::string>()(machine());
  const std::vector<std::uint64_t> all = world.gather(own);
  return std::ranges::find(all, own) - all.begin() == world.rank();
}

// Removes the counters that a rank does not have. Collective.
void keep_common(const World& world, EnergyCounters& found) {
  std::array<double, kEnergySources.size()> known{};
  std::ranges::transform(found.counters, known.begin(), [](const EnergyCounter& counter) { return counter ? 1 : 0; });
  world.minimum(known);
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i] > 0 || !found.counters[i]) continue;
    found.counters[i] = nullptr;
    found.reasons[i] = fmt::format("not every rank can read {}", kEnergySources[i].name);
  }
}

}  // namespace

EnergyMeter::EnergyMeter(const World& world, const Device& device) {
  const bool on_gpu = !device.info().shares_host_memory;
  EnergyCounters found = open_energy_counters(energy_place(on_gpu ? std::optional(gpu_of(world)) : std::nullopt));
  keep_common(world, found);
  const EnergyChoice choice = choose_energy_sources(found, on_gpu);
  chosen_ = {.source = join_sources(choice, &EnergySource::name),
             .of = join_sources(choice, &EnergySource::of),
             .unknown = choice.unknown};
  if (!choice.unknown.empty()) return;
  const bool reads_machine = first_on_machine(world), reads_gpu = on_gpu && ranks_on_gpu(world).first;
  for (const std::size_t i : choice.sources) {
    const EnergySource& source = kEnergySources[i];
    if (source.each == EnergySource::Each::gpu ? reads_gpu : reads_machine)
      counters_.push_back(std::make_unique<SampledCounter>(std::move(found.counters[i]), source.period_seconds));
  }
}

void EnergyMeter::begin_steps() {
  for (const auto& counter : counters_) counter->begin();
}

void EnergyMeter::end_steps() {
  for (const auto& counter : counters_) counter->end();
}

Energy EnergyMeter::total(const World& world) const {
  Energy energy = chosen_;
  if (!energy.unknown.empty()) return energy;
  std::array<double, 3> sums{};
  for (const auto& counter : counters_) {
    const SampledCounter::Totals found = counter->totals();
    sums[0] += found.unknown.empty() ? 0 : 1;
    sums[1] += found.watts;
    sums[2] += found.joules;
    energy.unknown = found.unknown.empty() ? energy.unknown : found.unknown;
  }
  world.sum(sums);
  energy.watts = sums[1];
  energy.joules = sums[2];
  if (sums[0] > 0 && energy.unknown.empty()) energy.unknown = "another counter of this run cannot be read";
  return energy;
}

}  // namespace annulus
