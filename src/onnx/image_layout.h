#pragma once

#include <onnx/onnx_pb.h>

#include <string>

namespace annulus {

// Whether a network's images are {batch, height, width, channels}: before all but arithmetic, it moves the channels to
// the front (a Transpose by 0, 3, 1, 2).
bool reads_channels_last(const onnx::GraphProto& graph, const std::string& input);

}  // namespace annulus
