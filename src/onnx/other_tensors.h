#pragma once

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/tensor.h"
#include "src/onnx/file.h"

namespace annulus {

// A tensor in PyTorch's state_dict that is no parameter of the network: a buffer that the graph has as a constant, or a
// parameter that does not reach the output. Elements are row-major.
struct OtherTensor {
  std::string name;
  Shape shape;
  std::variant<std::vector<float>, std::vector<std::int64_t>> elements;
};

// Returns the other tensors that a file has values for. `known`: names of the network's own tensors.
std::vector<OtherTensor> other_tensors(const OnnxFile& file, const std::set<std::string>& known);

}  // namespace annulus
