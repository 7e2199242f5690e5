#include "kernels/cuda/vendor/tuned_matmul.h"

#include <catch2/catch.hpp>

#include "tests/gpu/ops/gpu.h"
#include "tests/unit/random_values.h"
#include "tests/unit/small_network.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using cuda::MatmulProblem;
using Function = MatmulProblem::Function;
using Values = std::vector<float>;

MatmulProblem problem(bool bias, Function function, bool wide = false, bool accumulate = false) {
  return {.precision = Precision::bf16,
          .rows = 264,
          .columns = 136,
          .inner = 520,
          .a_transposed = wide,
          .b_transposed = !wide,
          .bias = bias,
          .function = function,
          .wide_output = wide,
          .accumulate = accumulate};
}

// A plain product, a product with bias and GELU, and weights' gradients.
const MatmulProblem kProblems[] = {problem(false, Function::none), problem(true, Function::gelu_and_input),
                                   problem(false, Function::none, true), problem(false, Function::none, true, true)};

// The output's bytes, and the GELU's input's.
std::vector<std::byte> product(test::Gpu& gpu, cuda::MatmulPlanner& planner, const MatmulProblem& p) {
  const auto plan = planner.plan(p);
  if (plan == nullptr) return {};
  Buffer a, b, bias, output, gelu_input, workspace = cuda::allocate_device(plan->workspace_bytes());
  const auto random = [&](std::size_t count, std::uint64_t seed, DataType type, Buffer& to) {
    const auto bytes = test::to_type(test::random_values(count, seed), type);
    test::upload(gpu.context, bytes.data(), bytes.size(), to);
  };
  const DataType output_type = p.wide_output ? DataType::f32 : DataType::bf16;
  random(p.rows * p.inner, 1, DataType::bf16, a);
  random(p.columns * p.inner, 2, DataType::bf16, b);
  random(p.columns, 3, output_type, bias);
  random(p.rows * p.columns, 4, output_type, output);
  random(p.rows * p.columns, 5, output_type, gelu_input);
  plan->run({.a = a.view().address,
             .b = b.view().address,
             .output = output.view().address,
             .bias = p.bias ? bias.view().address : nullptr,
             .gelu_input = p.has_gelu_input() ? gelu_input.view().address : nullptr,
             .factor = p.wide_output ? gpu.context.unscale : nullptr},
            workspace.view().address, gpu.context.lane.get());
  std::vector<std::byte> bytes(output.view().bytes + gelu_input.view().bytes);
  test::download(gpu.context, output.view(), bytes.data());
  test::download(gpu.context, gelu_input.view(), bytes.data() + output.view().bytes);
  return bytes;
}

}  // namespace

TEST_CASE("on a GPU: measured algorithms compute the same products, and are found again in the file") {
  test::Gpu gpu(Precision::bf16);
  const test::TemporaryFolder folder;
  const auto file = folder / "tuning.json";
  const Tuning tuning{.file = file};
  const auto make_planner = [&] {
    return cuda::make_matmul_planner(tuning, std::make_shared<cuda::TuningBudget>(tuning));
  };
  const auto measuring = make_planner();
  for (const MatmulProblem& p : kProblems) {
    CAPTURE(p.bias, p.wide_output, p.accumulate);
    const DataType type = p.wide_output ? DataType::f32 : DataType::bf16;
    const auto plain = product(gpu, *gpu.context.matmuls, p), tuned = product(gpu, *measuring, p);
    const Values expected = test::from_type(plain, type);
    CHECK(test::distance(test::from_type(tuned, type), expected) <= 0x1p-7 * test::norm(expected));
    CHECK(product(gpu, *make_planner(), p) == tuned);
  }
}

}  // namespace annulus
