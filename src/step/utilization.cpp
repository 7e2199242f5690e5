#include "src/step/utilization.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/cpu/loops/arithmetic.h"
#include "models/graph/cost.h"
#include "src/job/gpu_use.h"
#include "src/job/threads.h"

namespace annulus {
namespace {

constexpr double kPeakSeconds = 0.02;  // also for cores that raise their clock first

}  // namespace

std::optional<double> Utilization::share(std::size_t samples, double seconds) const {
  if (!peak_flops_per_second || !(seconds > 0)) return std::nullopt;
  return sample_flops * static_cast<double>(samples) / (seconds * *peak_flops_per_second);
}

std::string Utilization::peak_text() const {
  return fmt::format("{:.1f} GFLOP/s, the measured peak of {}", 1e-9 * *peak_flops_per_second, peak_of);
}

double node_peak(std::span<const double> sums, std::span<const double> fastest, int processors) {
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  return processors > 0 ? std::min(sum, processors * std::ranges::max(fastest)) : sum;
}

Utilization measure_utilization(const World& world, Device& device, const Graph& graph) {
  Utilization found{.sample_flops = static_cast<double>(total_cost(graph).training_flops), .peak_flops_per_second = {}};
  if (!device.info().shares_host_memory) {
    found.peak_flops_per_second = products_of_gpus(world, device);
    found.peak_of = "matrix products on all GPUs";
    return found;
  }
  const cpu::PeakRate own = cpu::peak_flops_per_second(kPeakSeconds);
  const World node = world.node();
  const double all = node_peak(node.gather(own.sum), node.gather(own.fastest), processors_of(node));
  double peak = node.root() ? all : 0;
  world.sum({&peak, 1});
  found.peak_flops_per_second = peak;
  return found;
}

}  // namespace annulus
