#include "src/step/gpu_memory_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/cuda/make_cuda_device.h"
#include "src/io/bytes.h"

namespace annulus {

std::optional<GpuMemoryUse> gpu_memory_use(const World& world, Model& model, const Optimizer& optimizer) {
  if (model.device().info().shares_host_memory) return std::nullopt;
  const Parameters& parameters = model.parameters();
  std::size_t states = optimizer.average().bytes;
  for (std::size_t number = 0; number < optimizer.states(); ++number) states += optimizer.state(number).bytes;
  const GpuMemory memory = gpu_memory();
  const std::size_t weights = parameters.weights().bytes + parameters.copies().bytes;
  const std::size_t known = weights + parameters.gradients().bytes + states + model.activation_bytes();
  std::array<double, 6> most{};
  std::ranges::transform(std::array{weights, parameters.gradients().bytes, states, model.activation_bytes(),
                                    memory.arrays - std::min(known, memory.arrays), memory.in_use},
                         most.begin(), [](std::size_t bytes) { return static_cast<double>(bytes); });
  world.maximum(most);
  const auto bytes = [&](std::size_t number) { return static_cast<std::size_t>(most[number]); };
  return GpuMemoryUse{bytes(0), bytes(1), bytes(2), bytes(3), bytes(4), bytes(5)};
}

std::string to_string(const GpuMemoryUse& use) {
  return fmt::format(
      "{} of arrays on a GPU (weights {}, gradients {}, states {}, activations {}, workspaces and buffers {}); {} in "
      "use there by all processes",
      format_bytes(use.arrays()), format_bytes(use.weights), format_bytes(use.gradients), format_bytes(use.states),
      format_bytes(use.activations), format_bytes(use.workspaces), format_bytes(use.in_use));
}

}  // namespace annulus
