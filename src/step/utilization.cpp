#include "src/step/utilization.h"

#include <fmt/format.h>

#include "kernels/cpu/loops/arithmetic.h"
#include "models/graph/cost.h"

namespace annulus {
namespace {

constexpr double kPeakSeconds = 0.02;  // also for cores that raise their clock first

}  // namespace

std::optional<double> Utilization::share(std::size_t samples, double seconds) const {
  if (!peak_flops_per_second || !(seconds > 0)) return std::nullopt;
  return sample_flops * static_cast<double>(samples) / (seconds * *peak_flops_per_second);
}

std::string Utilization::peak_text() const {
  return fmt::format("{:.1f} GFLOP/s, the measured peak of all threads with float32 in registers",
                     1e-9 * *peak_flops_per_second);
}

Utilization measure_utilization(const World& world, const Device& device, const Graph& graph) {
  Utilization found{.sample_flops = static_cast<double>(total_cost(graph).training_flops), .peak_flops_per_second = {}};
  if (!device.info().shares_host_memory) return found;
  double peak = cpu::peak_flops_per_second(kPeakSeconds);
  world.sum({&peak, 1});
  found.peak_flops_per_second = peak;
  return found;
}

}  // namespace annulus
