#include "kernels/base/error.h"
#include "kernels/cuda/ops/product/pixel_product.h"
#include "kernels/cuda/ops/product/window_product.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {
namespace {

struct Kind {
  bool (*computes)(const ConvolutionProblem& layer);
  std::unique_ptr<ConvolutionPlan> (*make)(const ConvolutionProblem& problem, int multiprocessors);
};

constexpr Kind kKinds[] = {
    {[](const ConvolutionProblem& layer) { return layer.is_product(); }, make_pixel_product},
    {is_window_product, make_window_product},
};

const Kind* kind_of(const ConvolutionProblem& layer) {
  if (value_type(layer.precision) == DataType::f32) return nullptr;
  for (const Kind& kind : kKinds)
    if (kind.computes(layer)) return &kind;
  return nullptr;
}

}  // namespace

bool has_own_products() {
  return has_pixel_products();
}

bool is_own_product(const ConvolutionProblem& layer) {
  return kind_of(layer) != nullptr;
}

std::unique_ptr<ConvolutionPlan> plan_own_product(const ConvolutionProblem& problem) {
  require_sound(problem);
  const Kind* const kind = kind_of(problem);
  if (!problem.is_own() || kind == nullptr) fail("there is no kernel for a {}", to_string(problem));
  if (!has_own_products()) fail("a {} needs a GPU of compute capability 9.0", to_string(problem));
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, current_device()));
  return kind->make(problem, multiprocessors);
}

}  // namespace annulus::cuda
