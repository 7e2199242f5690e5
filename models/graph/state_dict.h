#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/graph/graph.h"

namespace annulus {

// A tensor of a network's state_dict in PyTorch.
struct StateTensor {
  std::string name;          // the zoo's networks have the names of torchvision's
  std::string parameter;     // its name in the graph; another one only if PyTorch has several names for it
  Shape shape;               // PyTorch's: the weights of a dense layer are a matrix
  Shape parameter_shape;     // in the graph
  bool transposed{false};    // PyTorch's matrix is the transposed one
  bool counts_steps{false};  // a batch norm's num_batches_tracked, an integer, which is no parameter in the graph
};

// Returns them in the order of the layers.
std::vector<StateTensor> state_dict(const Graph& graph);

// Returns the transpose of a row-major matrix {rows, columns}.
std::vector<float> transposed(std::span<const float> matrix, const Shape& shape);

// Returns the index of the last layer with weights, whose outputs are the classes; if it shares them, as the head of a
// language model does with the embedding, that of the first layer that has them.
std::size_t head_of(const Graph& graph);

}  // namespace annulus
