#include <catch2/catch.hpp>

#include "kernels/cuda/vendor/tuning_budget.h"
#include "tests/gpu/ops/operation_trial.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using test::Trial;

// The output and the input's gradient.
std::vector<test::Values> attention(test::Gpu& gpu) {
  Trial trial(gpu, Attention{.heads = 4, .causal = true}, {{2, 128, 3 * 4 * 64}}, test::Wanted::written);
  trial.op->forward();
  trial.op->backward(1);
  return {trial.output[0].read(), trial.input_gradients[0].read()};
}

}  // namespace

TEST_CASE("on a GPU: measured plans compute the same attention, and are found again in the file") {
  test::Gpu gpu(Precision::bf16);
  const test::TemporaryFolder folder;
  const Tuning tuning{.file = folder / "tuning.json"};
  const auto plain = attention(gpu);
  const auto use = [&](double seconds) {
    gpu.context.attention = cuda::make_attention_planner(tuning, std::make_shared<cuda::TuningBudget>(tuning, seconds));
    return attention(gpu);
  };
  const auto tuned = use(30);
  for (std::size_t i = 0; i < plain.size(); ++i)
    CHECK(test::distance(tuned[i], plain[i]) <= test::tolerance(Precision::bf16) * test::largest(plain[i]));
  CHECK(use(0) == tuned);
}

}  // namespace annulus
