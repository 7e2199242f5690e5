#include "kernels/base/error.h"
#include "kernels/cuda/ops/product/pixel_product.h"
#include "kernels/cuda/ops/product/window_product.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {
namespace {

struct Kind {
  bool (*computes)(const ConvolutionProblem& layer);
  bool (*is_built)();  // for the current device
  std::unique_ptr<ConvolutionPlan> (*make)(const ConvolutionProblem& problem, int multiprocessors);
};

constexpr Kind kKinds[] = {
    {[](const ConvolutionProblem& layer) { return layer.is_product(); }, has_pixel_products, make_pixel_product},
    {is_window_product, has_window_products, make_window_product},
};

const Kind* kind_of(const ConvolutionProblem& layer) {
  if (value_type(layer.precision) == DataType::f32) return nullptr;
  for (const Kind& kind : kKinds)
    if (kind.computes(layer)) return &kind;
  return nullptr;
}

}  // namespace

bool is_own_product(const ConvolutionProblem& layer) {
  return kind_of(layer) != nullptr;
}

bool has_own_product(const ConvolutionProblem& layer) {
  const Kind* const kind = kind_of(layer);
  return kind != nullptr && kind->is_built();
}

std::unique_ptr<ConvolutionPlan> plan_own_product(const ConvolutionProblem& problem) {
  require_sound(problem);
  const Kind* const kind = kind_of(problem);
  if (!problem.is_own() || kind == nullptr) fail("there is no kernel for a {}", to_string(problem));
  if (!kind->is_built()) fail("there is no kernel for a {} on this GPU", to_string(problem));
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, current_device()));
  return kind->make(problem, multiprocessors);
}

}  // namespace annulus::cuda
