#pragma once

#include <cstdint>
#include <vector>

#include "kernels/operations/parameter.h"

namespace annulus {

// A fully connected layer over everything but the batch: {batch, ...} -> {batch, units}. With relu, max(0, .).
struct Dense {
  static constexpr auto kName = "dense";

  std::size_t units;
  bool relu = false;
  float stddev = 0;            // initial weights' std; 0: sqrt(1 / fan-in)
  bool input_gradient = true;  // as in Convolution
  bool bias = true;

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
  std::uint64_t flops(const Shapes& inputs) const;
};

// A fully connected layer over the last dimension: {..., features} -> {..., units}. Weights {units, features}.
struct Linear {
  static constexpr auto kName = "linear";

  std::size_t units;
  bool bias = true;
  float stddev = 0;                 // as in Dense
  bool transposed_in_file = false;  // files with PyTorch's weights have {features, units}, as Hugging Face's Conv1D

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
  std::uint64_t flops(const Shapes& inputs) const;
};

// Multiplies two stacks of matrices: {..., rows, inner} x {..., inner, columns} -> {..., rows, columns}. The dimensions
// before the last two must be equal.
struct MatrixProduct {
  static constexpr auto kName = "matrix product";

  Shape output_shape(const Shapes& inputs) const;
  std::uint64_t flops(const Shapes& inputs) const;
};

}  // namespace annulus
