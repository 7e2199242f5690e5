#pragma once

#include <cstddef>
#include <vector>

#include "kernels/base/tensor.h"

// Moves elements between row-major tensors with different shapes and orders.
namespace annulus::cpu {

using Strides = std::vector<std::size_t>;  // in elements; 0 repeats an element

Strides row_major_strides(const Shape& shape);

// A loop over the indices of `shape`, and an index's positions in two tensors.
struct Walk {
  Shape shape;
  Strides from, to;
};

// to[.] = from[.], or with `add`, to[.] += from[.]. REQUIRES: no element of `to` is visited twice.
void move_elements(const Walk& walk, const float* from, float* to, bool add = false);

// Sums over the dimensions with stride 0 in `to`: to[.] = the sum over from[.], or with `add`, to[.] += that sum.
void sum_elements(const Walk& walk, const float* from, float* to, bool add = false);

}  // namespace annulus::cpu
