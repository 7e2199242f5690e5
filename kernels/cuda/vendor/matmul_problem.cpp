#include "kernels/cuda/vendor/matmul_problem.h"

#include <fmt/format.h>

#include <array>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/layout.h"

namespace annulus::cuda {

std::string to_string(const MatmulProblem& p) {
  constexpr std::array kFunctions{"", " with ReLU", " with GELU", " with GELU and its input", " with GELU's gradient"};
  return fmt::format("matrix product in {} of {}{}{} x {} by {}{} x {}{}{}{}{}", to_string(p.precision),
                     p.count > 1 ? fmt::format("{} times ", p.count) : "", p.a_transposed ? "transposed " : "", p.rows,
                     p.inner, p.b_transposed ? "transposed " : "", p.inner, p.columns, p.bias ? " with bias" : "",
                     kFunctions.at(static_cast<std::size_t>(p.function)), p.wide_output ? ", in float32" : "",
                     p.accumulate ? ", added" : "");
}

void require_sound(const MatmulProblem& p) {
  const auto wrong = [&](std::string_view what) { fail("invalid {}: {}", to_string(p), what); };
  if (p.rows == 0 || p.columns == 0 || p.inner == 0 || p.count == 0) wrong("every size must be at least 1");
  const std::size_t block = channel_block(value_type(p.precision));
  for (const std::size_t side : {p.output_length(), p.a_length(), p.b_length()})
    if (side % block != 0) wrong(fmt::format("rows in memory must have a multiple of {} values", block));
  if (p.has_gelu() && (p.count > 1 || p.accumulate)) wrong("GELU is only of a single product, alone");
  if (p.function == MatmulProblem::Function::gelu_backward && p.bias) wrong("GELU's gradient has no bias");
}

}  // namespace annulus::cuda
