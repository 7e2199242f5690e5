#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// A tensor in the network's PyTorch state_dict.
struct StateTensor {
  std::string name;          // the zoo's networks use torchvision's names
  std::string parameter;     // the name in the graph; differs only if PyTorch has several names for the tensor
  Shape shape;               // PyTorch's: a dense layer's weights are a matrix
  Shape parameter_shape;     // in the graph
  bool transposed{false};    // PyTorch's matrix is transposed
  bool counts_steps{false};  // a batch norm's num_batches_tracked, an integer, which is no parameter in the graph
};

// Returns the tensors in layer order.
std::vector<StateTensor> state_dict(const Graph& graph);

// Transposes a row-major matrix {rows, columns}.
std::vector<float> transposed(std::span<const float> matrix, const Shape& shape);

// Returns the index of the last layer with weights, whose outputs are the classes; if that layer shares weights, as a
// language model's head does with the embedding, the index of the first layer that has them.
std::size_t head_of(const Graph& graph);

}  // namespace annulus
