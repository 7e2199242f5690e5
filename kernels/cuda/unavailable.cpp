// What stands in for the rest of this folder in a program that is built without CUDA.

#include "kernels/base/error.h"
#include "kernels/cuda/make_cuda_device.h"

namespace annulus {

std::string why_no_gpu() {
  return "this program was built without CUDA (" ANNULUS_CUDA_MISSING ")";
}

int gpus_here() {
  return 0;
}

std::string gpu_name(int) {
  return "";
}

std::unique_ptr<Device> make_cuda_device(const DeviceRequest&) {
  fail("cannot use a GPU: {}", why_no_gpu());
}

}  // namespace annulus
