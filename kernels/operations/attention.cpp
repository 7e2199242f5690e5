#include "kernels/operations/attention.h"

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

Shape Attention::output_shape(const Shapes& inputs) const {
  expect_inputs(inputs, 1, kName);
  const Shape& in = inputs[0];
  if (in.size() != 3 || heads == 0 || in[2] % (3 * heads) != 0)
    fail(
        "attention with {} heads takes {{batch, length, 3 x width}} with a width that is a multiple of the heads, not "
        "{}",
        heads, to_string(in));
  return {in[0], in[1], in[2] / 3};
}

std::uint64_t Attention::flops(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  const std::uint64_t all = 4 * in[0] * in[1] * in[1] * (in[2] / 3);
  return causal ? all / 2 : all;
}

}  // namespace annulus
