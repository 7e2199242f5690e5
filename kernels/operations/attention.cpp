#include "kernels/operations/attention.h"

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

Shape Attention::output_shape(const Shapes& inputs) const {
  if (!(dropout >= 0 && dropout < 1)) fail("invalid dropout rate {}: must be at least 0 and below 1", dropout);
  expect_inputs(inputs, dropout > 0 ? 2 : 1, kName);
  const Shape& in = inputs[0];
  if (in.size() != 3 || heads == 0 || in[2] % (3 * heads) != 0)
    fail(
        "attention with {} heads takes {{batch, length, 3 x width}} with a width that is a multiple of the heads, not "
        "{}",
        heads, to_string(in));
  if (dropout > 0 && inputs[1] != Shape{in[0]})
    fail("attention with dropout takes {{batch}} keys, not {}", to_string(inputs[1]));
  return {in[0], in[1], in[2] / 3};
}

std::uint64_t Attention::flops(const Shapes& inputs) const {
  const Shape& in = inputs[0];
  const std::uint64_t all = 4 * in[0] * in[1] * in[1] * (in[2] / 3);
  return causal ? all / 2 : all;
}

Shape CachedAttention::output_shape(const Shapes& inputs) const {
  expect_inputs(inputs, 2, kName);
  const Shape out = Attention{heads, true}.output_shape({inputs[0]});
  if (out[1] != 1 || inputs[1] != Shape{out[0]})
    fail("{} takes {{batch, 1, 3 x width}} and {{batch}}, not {} and {}", kName, to_string(inputs[0]),
         to_string(inputs[1]));
  return out;
}

}  // namespace annulus
