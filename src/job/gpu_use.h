#pragma once

#include "collectives/world/world.h"
#include "kernels/device.h"

namespace annulus {

// The ranks' GPUs.

// Returns the number that this rank's GPU has on the node; GPUs are assigned in turn.
int gpu_of(const World& world);

// The ranks on this rank's GPU. Collective. REQUIRES: the ranks compute on GPUs.
struct RanksOnGpu {
  int count = 1;
  bool first = true;  // this rank is the first on it
};
RanksOnGpu ranks_on_gpu(const World& world);

// Returns the FLOP/s that matrix products reach on all ranks' GPUs; see product_flops_per_second(). Collective; the
// same on every rank. REQUIRES: as above.
double products_of_gpus(const World& world, Device& device);

}  // namespace annulus
