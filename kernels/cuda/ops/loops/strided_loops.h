#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/runtime/layout.h"

// Loops over a tensor in memory order that read other tensors in any order.
namespace annulus::cuda {

using Strides = std::vector<std::int64_t>;  // in elements, for each dimension; 0 repeats an element

// Returns the strides of a tensor of values.
Strides strides_of(const TensorSpec& tensor);

// Returns the distances, in elements, between neighbours in row-major order.
Strides row_major_strides(const Shape& shape);

// Returns an operand's strides in a loop over `output`. Shapes are aligned at their last dimension; a dimension that is
// missing or 1 is repeated.
Strides repeated(const TensorSpec& operand, const Shape& output);

// A vector's position in a tensor: neighbouring elements, `stride` apart. `used` elements are not padding.
struct Lanes {
  std::int64_t offset, stride;
  unsigned used;
};

template <unsigned operands>
struct Operands {
  Lanes of[operands];
};

// A loop over a tensor's vectors, and their positions in `operands` tensors. Passed to kernels by value, as const
// __grid_constant__: otherwise the compiler may copy it for each thread.
template <unsigned operands>
struct Loop {
  static constexpr unsigned kDimensions = 8;
  unsigned dimensions = 0;  // besides the channels; the last dimension is the fastest
  unsigned size[kDimensions]{};
  std::int64_t stride[operands][kDimensions]{};
  unsigned channels = 1, lanes = 1;  // elements in a row without padding, and in a vector
  std::int64_t channel_stride[operands]{};

  unsigned row_vectors() const { return (channels + lanes - 1) / lanes; }
  std::size_t rows() const {
    std::size_t product = 1;
    for (unsigned d = 0; d < dimensions; ++d) product *= size[d];
    return product;
  }
  std::size_t vectors() const { return rows() * row_vectors(); }

  // Adds an outermost dimension. If `join`, joins it with the dimension inside it if they are contiguous in all
  // operands.
  void add_outside(std::size_t extent, const std::array<std::int64_t, operands>& strides, bool join = true) {
    if (extent == 1 && join) return;
    bool joins = join && dimensions > 0;
    for (unsigned o = 0; o < operands && joins; ++o) joins = strides[o] == stride[o][0] * std::int64_t{size[0]};
    if (joins) {
      size[0] *= static_cast<unsigned>(extent);
      return;
    }
    expect_dimensions(++dimensions, kDimensions);
    for (unsigned d = dimensions - 1; d > 0; --d) {
      size[d] = size[d - 1];
      for (unsigned o = 0; o < operands; ++o) stride[o][d] = stride[o][d - 1];
    }
    size[0] = static_cast<unsigned>(extent);
    for (unsigned o = 0; o < operands; ++o) stride[o][0] = strides[o];
  }

  // Returns the lanes of the index-th vector in each operand.
  __device__ Operands<operands> at(unsigned index) const {
    Operands<operands> all;
    const unsigned in_row = (channels + lanes - 1) / lanes, first = index % in_row * lanes;
    for (unsigned o = 0; o < operands; ++o) {
      all.of[o].offset = first * channel_stride[o];
      all.of[o].stride = channel_stride[o];
      all.of[o].used = channels - first < lanes ? channels - first : lanes;
    }
    unsigned rest = index / in_row;
    for (unsigned d = dimensions; d-- > 0; rest /= size[d])
      for (unsigned o = 0; o < operands; ++o) all.of[o].offset += rest % size[d] * stride[o][d];
    return all;
  }
};

// A loop over a tensor of values with layout `over`. `strides`: each operand's, for each dimension of the tensor.
template <unsigned operands>
Loop<operands> loop_over(const ChannelsLast& over, const std::array<Strides, operands>& strides, unsigned lanes,
                         bool join = true) {
  vectors_of(over);  // checks that 32 bits can count them
  Loop<operands> loop;
  loop.lanes = lanes;
  const auto at = [&](std::size_t dimension) {
    std::array<std::int64_t, operands> all;
    for (unsigned o = 0; o < operands; ++o) all[o] = strides[o][dimension];
    return all;
  };
  const Shape& shape = over.shape();
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (d != over.axis()) {
      loop.add_outside(shape[d], at(d), join);
      continue;
    }
    loop.channels = static_cast<unsigned>(shape[d]);
    for (unsigned o = 0; o < operands; ++o) loop.channel_stride[o] = strides[o][d];
  }
  return loop;
}

}  // namespace annulus::cuda
