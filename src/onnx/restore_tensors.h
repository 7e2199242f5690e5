#pragma once

#include <onnx/onnx_pb.h>

namespace annulus {

// Undoes what PyTorch's newer exporter does to parameters when it optimizes:
// - Linear layers' transposed weights become the parameter, with a Transpose node for each layer.
// - Another tensor that was computed twice from a parameter becomes a single tensor, and transposes become nodes.
// - Biases with zeros, which it removes from Gemm, Conv and ConvTranspose, return under the names that it traced.
void restore_tensors(onnx::GraphProto& graph);

}  // namespace annulus
