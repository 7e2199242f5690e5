#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/extent.h"
#include "kernels/operations/parameter.h"

namespace annulus {

// Windows over images {batch, channels, height, width} -> {batch, channels, rows, columns}. With groups, the channels
// are divided into equal parts, each computed from the same part of the input's channels. With relu, the output is
// max(0, .). Weights {channels, input channels / groups, kernel height, kernel width}.
struct Convolution {
  static constexpr auto kName = "convolution";

  std::size_t channels;
  Extent kernel;
  Extent stride = 1;
  Border padding = 0;
  bool bias = true;
  bool relu = false;
  float stddev = 0;            // initial weights' std; 0: sqrt(1 / fan-in)
  bool input_gradient = true;  // whether the input's gradient may be needed; if not, nothing is planned for it
  Extent dilation = 1;         // distance between a window's pixels
  std::size_t groups = 1;
  bool begins_as_copy = false;  // see ParameterDeclaration; without groups

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
  std::uint64_t flops(const Shapes& inputs) const;

  // A single group, no dilation, equal strides, and the same padding on all sides: the only kind that some kernels
  // support.
  bool basic() const { return groups == 1 && dilation == 1 && stride.square() && padding.uniform(); }
};

// The gradient of a convolution with respect to the input, as an operation: {batch, channels, height, width} -> {batch,
// channels, (height - 1) stride - padding + dilation (kernel - 1) + extra + 1, the same for the width}. Weights {input
// channels, channels / groups, kernel height, kernel width}. (Zeiler et al., "Deconvolutional networks", CVPR 2010.)
struct TransposedConvolution {
  static constexpr auto kName = "transposed convolution";

  std::size_t channels;
  Extent kernel;
  Extent stride = 1;
  Border padding = 0;
  Extent extra = 0;  // rows and columns added at the output's end
  Extent dilation = 1;
  std::size_t groups = 1;
  bool bias = true;

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
  std::uint64_t flops(const Shapes& inputs) const;
};

}  // namespace annulus
