#pragma once

#include <vector>

#include "kernels/operation.h"

namespace annulus::test {

// A row-major tensor in double precision.
struct Tensor {
  Shape shape;
  std::vector<double> values;
};

// Computes an operation in the simplest, and slowest, loops. Batch norm is that of training, with the batch's
// statistics. The image input and the loss are not supported, because they do not map real tensors to real tensors.
Tensor naive_forward(const Operation& operation, const std::vector<Tensor>& inputs,
                     const std::vector<Tensor>& parameters);

}  // namespace annulus::test
