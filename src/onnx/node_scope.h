#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

// Where in PyTorch's module tree an exporter found a node.
namespace annulus {

// The parts that PyTorch's newer exporter writes: "", "features", "features.0", and the traced operation.
std::vector<std::string> exported_scopes(const onnx::NodeProto& node);

// Returns the module: "features.0.1"; empty if the file does not say, or for the network itself. In the older
// exporter's files a module's second call has a number: "features.0.1_1".
std::string module_of(const onnx::NodeProto& node);

}  // namespace annulus
