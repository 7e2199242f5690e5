#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "kernels/base/extent.h"
#include "kernels/base/tensor.h"
#include "kernels/operations/parameter.h"

// Helpers for the operations' shapes.
namespace annulus {

// Throw Error, naming the operation, if there is not this number of inputs, or an input is not {batch, channels,
// height, width}, or it has fewer dimensions.
void expect_inputs(const Shapes& inputs, std::size_t number, std::string_view operation);
void expect_images(const Shape& shape, std::string_view operation);
void expect_dimensions(const Shape& shape, std::size_t least, std::string_view operation);

// Returns the output's shape for windows that slide over images. Throws Error if a window does not fit.
Shape windows(const Shape& in, std::size_t channels, const Extent& kernel, const Extent& stride, const Border& padding,
              const Extent& dilation = 1);

// Returns the product over a range of dimensions.
std::size_t elements(const Shape& shape, std::size_t begin, std::size_t end);

// A layer's "weight", whose outermost dimension is not summed over, and the units' "bias" if there is a bias. If
// `stddev` is 0, the std keeps the variance from layer to layer.
std::vector<ParameterDeclaration> weights_and_bias(const Shape& weights, float stddev, std::size_t units, bool bias);

}  // namespace annulus
