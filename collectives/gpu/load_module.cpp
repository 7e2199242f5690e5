// The program's side of the CUDA module: replaces this folder's other files.

#include "collectives/gpu/module.h"
#include "kernels/base/error.h"
#include "kernels/cuda/module.h"

namespace annulus {

std::unique_ptr<AllReduce> make_gpu_all_reduce(const std::string& algorithm, const World& world, Device& device,
                                               WireType wire, std::optional<std::size_t> crossover) {
  const auto* collectives = static_cast<const CudaCollectives*>(find_in_cuda_module("annulus_cuda_collectives"));
  if (collectives == nullptr) fail("cannot all-reduce in GPU memory: {}", cuda_module().problem);
  return collectives->make(algorithm, world, device, wire, crossover);
}

}  // namespace annulus
