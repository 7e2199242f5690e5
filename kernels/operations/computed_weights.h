#pragma once

#include <cstdint>
#include <variant>

#include "kernels/operations/convolution.h"
#include "kernels/operations/dense.h"
#include "kernels/operations/elementwise.h"
#include "kernels/operations/norm.h"

namespace annulus {

// A layer whose parameters are inputs: after the layer's input come values with the shapes that the layer declares, in
// that order. They are computed from parameters, as by weight normalization, do not depend on the batch, and have
// gradients.
struct ComputedWeights {
  static constexpr auto kName = "computed weights";

  std::variant<Convolution, TransposedConvolution, Linear, LayerNorm, GroupNorm, PRelu> layer;

  Shape output_shape(const Shapes& inputs) const;
  std::uint64_t flops(const Shapes& inputs) const;
};

}  // namespace annulus
