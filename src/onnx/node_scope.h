#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <string_view>
#include <vector>

// Where in PyTorch's module tree an exporter found a node.
namespace annulus {

// The parts that PyTorch's newer exporter writes: "", "features", "features.0", and the traced operation.
std::vector<std::string> exported_scopes(const onnx::NodeProto& node);

// The operation in torch.export's graph that a node belongs to.
struct TracedOperation {
  std::string target;               // "aten.linear.default"; empty if the file does not say
  std::vector<std::string> values;  // that the operation reads, in order: "x", "p_features_0_weight"
};
TracedOperation traced_operation(const onnx::NodeProto& node);

// Whether the exporter's optimizer says that it changed a node by a rule such as "FuseBatchNormIntoConv".
bool changed_by_rule(const onnx::NodeProto& node, std::string_view rule);

// Returns the module: "features.0.1"; empty if the file does not say, or for the network itself. In the older
// exporter's files a module's second call has a number: "features.0.1_1".
std::string module_of(const onnx::NodeProto& node);

}  // namespace annulus
