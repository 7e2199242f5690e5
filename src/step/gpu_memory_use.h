#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "collectives/world/world.h"
#include "models/network/model.h"
#include "src/step/optimizer.h"

namespace annulus {

// A training rank's memory on the GPU, in bytes; a step allocates nothing, so it is also the peak.
struct GpuMemoryUse {
  std::size_t weights = 0;      // with 16-bit copies
  std::size_t gradients = 0;    // without sums over earlier parts
  std::size_t states = 0;       // the optimizer's, with the weights' moving average
  std::size_t activations = 0;  // with their gradients
  std::size_t workspaces = 0;   // and every other array
  std::size_t in_use = 0;       // by all processes and libraries, on this GPU

  std::size_t arrays() const { return weights + gradients + states + activations + workspaces; }
};

// Returns the most on any rank, for each kind. Nothing if the ranks compute on CPUs. Collective.
std::optional<GpuMemoryUse> gpu_memory_use(const World& world, Model& model, const Optimizer& optimizer);

// "4.1 GiB of arrays on a GPU (weights 97 MiB, ...); 5.2 GiB in use".
std::string to_string(const GpuMemoryUse& use);

}  // namespace annulus
