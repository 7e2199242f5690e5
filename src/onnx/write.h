#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "models/graph/graph.h"

namespace annulus {

// Writes a network as ONNX (onnx.ai; the messages are onnx.proto3's). Operators in version 17 and the file format in
// version 8 came with ONNX 1.12 (2022) and are supported by later runtimes.
constexpr std::int64_t kOnnxOperators = 17, kOnnxFormat = 8;

// Returns a parameter's values, row-major float32, by name in the graph: "conv1.weight". They must stay valid until
// to_onnx() returns.
using ParameterValues = std::function<std::span<const float>(const std::string& name, const Shape& shape)>;

// Returns the bytes of an ONNX file that computes the graph's inference for any batch size:
//   input   images         uint8, {batch, height, width, channels}: pixels, as Graph::kImages; normalized by the file
//   output  logits         float32, {batch, classes}
//   output  probabilities  their softmax, or each logit's sigmoid if the loss is a binary cross-entropy
// or, if the loss is the mean squared error, a single output:
//   output  values         float32, {batch, width}
// or, if the network reads tokens:
//   input   tokens         int64, {batch, length}
//   output  logits         float32, {batch, length, vocabulary}, for each next token
// All other names are the graph's. `name`: the model's; `metadata`: further properties stored in the file.
//
// Throws Error if the parameters exceed the 2 GiB that a file can hold.
std::string to_onnx(const std::string& name, const Graph& graph, const ParameterValues& values,
                    const std::map<std::string, std::string>& metadata);

}  // namespace annulus
