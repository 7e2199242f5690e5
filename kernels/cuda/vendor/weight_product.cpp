#include "kernels/cuda/vendor/weight_product.h"

#include <utility>

namespace annulus::cuda {
namespace {

class WeightProduct final : public ConvolutionPlan {
 public:
  explicit WeightProduct(std::unique_ptr<Matmul> product) : product_(std::move(product)) {}

  std::size_t workspace_bytes() const override { return product_->workspace_bytes(); }

  void run(const ConvolutionOperands& o, void* workspace, cudaStream_t stream) override {
    product_->run({.a = o.output, .b = o.input, .output = o.weights, .factor = o.factor}, workspace, stream);
  }

 private:
  std::unique_ptr<Matmul> product_;
};

}  // namespace

std::unique_ptr<ConvolutionPlan> plan_weight_product(const ConvolutionProblem& problem, MatmulPlanner& matmuls) {
  return std::make_unique<WeightProduct>(matmuls.plan({.precision = problem.precision,
                                                       .rows = problem.filters,
                                                       .columns = problem.channels,
                                                       .inner = problem.batch * problem.height * problem.width,
                                                       .a_transposed = true,
                                                       .wide_output = true}));
}

}  // namespace annulus::cuda
