#pragma once

#include <vector>

#include "kernels/operation.h"

namespace annulus::test {

// A row-major tensor in double precision.
struct Tensor {
  Shape shape;
  std::vector<double> values;
};

// What an operation says in the plainest loops, and the slowest. Of batch norm it is the training's: statistics of the
// batch itself. The image input and the loss, which do not map real tensors to real tensors, are not among them.
Tensor naive_forward(const Operation& operation, const std::vector<Tensor>& inputs,
                     const std::vector<Tensor>& parameters);

}  // namespace annulus::test
