#pragma once

#include <onnx/onnx_pb.h>

#include <map>

namespace annulus {

// Finds stored tensors with values that PyTorch's buffers have, and that training hardly gives a parameter:
// - sines and cosines of the same angles, in two tensors, or in a tensor's halves or neighbours: positions;
// - a geometric sequence, from which such angles are computed;
// - 0 and numbers so low that an attention weight becomes 0: a mask.
// Returns the reasons why they are not trained, by tensor. Tensors without values are left out.
std::map<const onnx::TensorProto*, const char*> buffers_by_values(const onnx::GraphProto& graph);

}  // namespace annulus
