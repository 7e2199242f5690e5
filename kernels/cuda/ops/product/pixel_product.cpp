#include "kernels/cuda/ops/product/pixel_product.h"

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

bool has_own_products() {
  return has_pixel_products();
}

std::unique_ptr<ConvolutionPlan> plan_own_product(const ConvolutionProblem& problem) {
  require_sound(problem);
  if (!problem.is_own() || !problem.is_product() || value_type(problem.precision) == DataType::f32)
    fail("there is no kernel for a {}", to_string(problem));
  if (!has_pixel_products()) fail("a {} needs a GPU of compute capability 9.0", to_string(problem));
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, current_device()));
  return make_pixel_product(problem, multiprocessors);
}

}  // namespace annulus::cuda
