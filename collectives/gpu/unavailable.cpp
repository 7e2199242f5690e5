// What stands in for the rest of this folder in a program that is built without CUDA.

#include "collectives/gpu/make_gpu_all_reduce.h"
#include "kernels/base/error.h"
#include "kernels/cuda/make_cuda_device.h"

namespace annulus {

std::unique_ptr<AllReduce> make_gpu_all_reduce(const std::string&, const World&, Device&, WireType,
                                               std::optional<std::size_t>) {
  fail("cannot add in the memory of GPUs: {}", why_no_gpu());
}

}  // namespace annulus
