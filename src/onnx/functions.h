#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>

namespace annulus {

// Replaces each node that calls a function in the file by the function's nodes, and removes the functions. Their values
// and nodes are named after the call: "block1/x". `operators`: the file's version of the standard operators. Throws
// Error if a function calls itself or uses another version, or if a call does not fit.
void inline_functions(onnx::ModelProto& model, std::int64_t operators);

}  // namespace annulus
