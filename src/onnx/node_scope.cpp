#include "src/onnx/node_scope.h"

#include "src/onnx/file.h"
#include "src/onnx/marks.h"
#include "src/onnx/properties.h"

namespace annulus {

std::vector<std::string> exported_scopes(const onnx::NodeProto& node) {
  return python_list(property(node, PropertyField::node, OnnxFile::kScopes));
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
