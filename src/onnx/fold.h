#pragma once

#include <optional>
#include <vector>

#include "src/onnx/attributes.h"
#include "src/onnx/tensor.h"

namespace annulus {

// ONNX rules that the evaluation of constants and the reading of layers share. All throw Error if they are violated.

std::size_t checked_axis(std::int64_t axis, std::size_t dimensions);  // negative: from the end
Shape broadcast(const Shape& a, const Shape& b);
Shape reshaped(const Shape& from, const std::vector<std::int64_t>& target, bool zero_is_zero);

// `count` elements in a dimension from `begin` on, every `step`-th.
struct Stride {
  std::int64_t begin, step;
  std::size_t count;

  std::vector<std::size_t> indices() const;
};
Stride stride_of(std::int64_t start, std::int64_t end, std::int64_t step, std::size_t extent);

// The dimensions that a Squeeze removes, ascending.
std::vector<std::size_t> squeezed_axes(const Shape& shape, const std::vector<std::int64_t>& axes);
Shape unsqueezed(const Shape& shape, const std::vector<std::int64_t>& axes);

// Returns the sizes of the parts into which Split divides `extent` elements.
std::vector<std::size_t> split_sizes(std::size_t extent, const std::vector<std::int64_t>& sizes, std::size_t parts);

// Evaluates an operator on constants; a missing optional input is null. Returns nothing if there is no rule for it.
// Throws Error if the inputs do not fit.
std::optional<HostTensor> evaluate(const std::string& op, const Attributes& attributes,
                                   const std::vector<const HostTensor*>& inputs);

}  // namespace annulus
