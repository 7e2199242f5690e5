#include "src/job/gpu_use.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/make_cuda_device.h"
#include "src/job/machine.h"

namespace annulus {

int gpu_of(const World& world) {
  const int gpus = gpus_here();
  return gpus > 0 ? world.local_rank() % gpus : 0;
}

RanksOnGpu ranks_on_gpu(const World& world) {
  const std::uint64_t own = std::hash<std::string>()(host_name() + " " + gpu_name(gpu_of(world)));
  const std::vector<std::uint64_t> all = world.gather(own);
  return {static_cast<int>(std::ranges::count(all, own)), std::ranges::find(all, own) - all.begin() == world.rank()};
}

double products_of_gpus(const World& world, Device& device) {
  double sum = ranks_on_gpu(world).first ? product_flops_per_second(device) : 0;
  world.sum({&sum, 1});
  return sum;
}

}  // namespace annulus
