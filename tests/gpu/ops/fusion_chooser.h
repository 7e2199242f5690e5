#pragma once

#include <memory>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::test {

// Chooses each wanted pass that has a plan. There is no plan for `refused`.
class FusionChooser final : public cuda::ConvolutionPlanner {
 public:
  explicit FusionChooser(const cuda::ConvolutionPasses& wanted,
                         const std::optional<cuda::ConvolutionPass>& refused = {})
      : wanted_(wanted), refused_(refused) {}

  std::unique_ptr<cuda::ConvolutionPlan> plan(const cuda::ConvolutionProblem& problem) override {
    if (problem.pass == refused_) fail("no plan for a {}", to_string(problem));
    return planner_->plan(problem);
  }

  cuda::ConvolutionPasses choose_passes(const cuda::ConvolutionProblem& layer,
                                        const cuda::NormsBeside& norms) override {
    using enum cuda::NormsBeside::Before;
    const auto if_possible = [&](auto pass, auto rectified_pass, auto block_end_pass) {
      const bool possible = (pass == rectified_pass && norms.before == rectified) ||
                            (pass == block_end_pass && norms.before == block_end);
      return possible ? pass : decltype(pass){};
    };
    cuda::ConvolutionPasses passes;
    passes.forward.input = if_possible(wanted_.forward.input, cuda::Forward::normalized, cuda::Forward::block_end);
    passes.forward.statistics = wanted_.forward.statistics && norms.after;
    using enum cuda::BackwardData;
    passes.backward_data = if_possible(wanted_.backward_data, summed, summed_elsewhere);
    passes.own_products = wanted_.own_products && has_own_product(layer);
    if (passes.forward.input == cuda::Forward::normalized && !passes.own_products)
      passes.backward_weights = cuda::BackwardWeights::of_normalized;
    else if (wanted_.backward_weights == cuda::BackwardWeights::wide && layer.is_product())
      passes.backward_weights = cuda::BackwardWeights::wide;
    return passes;
  }

 private:
  cuda::ConvolutionPasses wanted_;
  std::optional<cuda::ConvolutionPass> refused_;
  std::unique_ptr<cuda::ConvolutionPlanner> planner_ = cuda::make_convolution_planner();
};

}  // namespace annulus::test
