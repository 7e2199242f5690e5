#include "kernels/operations/computed_weights.h"

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {

Shape ComputedWeights::output_shape(const Shapes& inputs) const {
  return std::visit(
      [&](const auto& o) {
        const Shapes own{inputs.at(0)};
        const Shape output = o.output_shape(own);
        const auto declared = o.parameters(own);
        expect_inputs(inputs, 1 + declared.size(), o.kName);
        for (std::size_t i = 0; i < declared.size(); ++i)
          if (inputs[i + 1] != declared[i].shape)
            fail("{}: its {} must be {}, not {}", o.kName, declared[i].name, to_string(declared[i].shape),
                 to_string(inputs[i + 1]));
        return output;
      },
      layer);
}

std::uint64_t ComputedWeights::flops(const Shapes& inputs) const {
  return std::visit(
      [&](const auto& o) -> std::uint64_t {
        if constexpr (requires { o.flops(inputs); }) return o.flops({inputs[0]});
        return 0;
      },
      layer);
}

}  // namespace annulus
