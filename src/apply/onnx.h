#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "models/graph.h"

namespace annulus {

// A network as ONNX (onnx.ai; the messages are those of onnx.proto3). Version 13 of the operators, with which version 7
// of the file format came (ONNX 1.8, 2020): what later runtimes read as well.
constexpr std::int64_t kOnnxOperators = 13, kOnnxFormat = 7;

// A parameter's values, row-major float32, by the name that the graph gives it: "conv1.weight". They must stay until
// the call that asks for them has returned.
using ParameterValues = std::function<std::span<const float>(const std::string& name, const Shape& shape)>;

// The bytes of an ONNX file that computes what the graph computes in inference, for any batch size:
//   input   images         uint8, {batch, height, width, channels}: pixels, as Graph::kImages; the file normalizes them
//   output  logits         float32, {batch, classes}
//   output  probabilities  their softmax
// Everything else is called as in the graph. `name`: of the model; `metadata`: what else the file shall say.
//
// Throws Error where the parameters are more than a file holds, which is 2 GiB.
std::string to_onnx(const std::string& name, const Graph& graph, const ParameterValues& values,
                    const std::map<std::string, std::string>& metadata);

}  // namespace annulus
