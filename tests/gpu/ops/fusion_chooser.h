#pragma once

#include <memory>

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::test {

// Chooses of these fusions those that are possible.
class FusionChooser final : public cuda::ConvolutionPlanner {
 public:
  explicit FusionChooser(const cuda::ConvolutionFusion& wanted) : wanted_(wanted) {}

  std::unique_ptr<cuda::ConvolutionPlan> plan(const cuda::ConvolutionProblem& problem) override {
    return planner_->plan(problem);
  }
  cuda::ConvolutionFusion choose_fusion(const cuda::ConvolutionProblem&,
                                        const cuda::ConvolutionFusion& possible) override {
    return {.normalized = wanted_.normalized && possible.normalized,
            .ends_block = wanted_.ends_block && possible.ends_block,
            .statistics = wanted_.statistics && possible.statistics,
            .gradient_sums = wanted_.gradient_sums && possible.gradient_sums,
            .wide_weights = wanted_.wide_weights && possible.wide_weights};
  }

 private:
  cuda::ConvolutionFusion wanted_;
  std::unique_ptr<cuda::ConvolutionPlanner> planner_ = cuda::make_convolution_planner();
};

}  // namespace annulus::test
