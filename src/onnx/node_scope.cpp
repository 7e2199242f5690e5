#include "src/onnx/node_scope.h"

#include "src/onnx/file.h"
#include "src/onnx/marks.h"
#include "src/onnx/properties.h"

namespace annulus {

std::vector<std::string> exported_scopes(const onnx::NodeProto& node) {
  return python_list(property(node, PropertyField::node, OnnxFile::kScopes));
}

// Reads "%linear : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%x, %p_weight), ...)".
TracedOperation traced_operation(const onnx::NodeProto& node) {
  constexpr std::string_view kTarget = "[target=torch.ops.";
  const std::string text = property(node, PropertyField::node, "pkg.torch.onnx.fx_node");
  TracedOperation operation;
  std::size_t at = text.find(kTarget);
  if (at == std::string::npos) return operation;
  at += kTarget.size();
  operation.target = text.substr(at, text.find(']', at) - at);
  while ((at = text.find('%', at)) != std::string::npos) {
    const std::size_t end = text.find_first_of(" ,():[]", ++at);
    operation.values.push_back(text.substr(at, end - at));
  }
  return operation;
}

bool changed_by_rule(const onnx::NodeProto& node, std::string_view rule) {
  const std::string rules = property(node, PropertyField::node, "pkg.onnxscript.rewriter.rule_name");
  return !rules.empty() && rules.find(rule) != std::string::npos;
}

// PyTorch's older exporter names nodes by the modules' names, each relative to the module before:
// "/features/features.1/block/block.0/Conv" is in features.1.block.0.
std::string module_of(const onnx::NodeProto& node) {
  const auto scopes = exported_scopes(node);
  if (scopes.size() > 1) return scopes[scopes.size() - 2];
  const std::string& path = node.name();
  if (!path.starts_with('/')) return "";
  std::string full, previous;
  for (std::size_t at = 1, end; (end = path.find('/', at)) != std::string::npos; at = end + 1) {
    const std::string part = path.substr(at, end - at);
    const bool continues = !previous.empty() && part.starts_with(previous + ".");
    full += continues ? part.substr(previous.size()) : full.empty() ? part : "." + part;
    previous = part;
  }
  return full;
}

}  // namespace annulus
