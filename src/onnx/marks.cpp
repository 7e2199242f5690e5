#include "src/onnx/marks.h"

#include <sstream>

#include "src/onnx/properties.h"

namespace annulus {
namespace {

constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr const char* kPersistent = "pkg.torch.export.graph_signature.InputSpec.persistent";
constexpr const char* kSignature = "pkg.torch.export.ExportedProgram.graph_signature";
constexpr const char* kFolded = "pkg.onnxscript.optimizer.folded_from";

// Reads lines such as "b_mid_k: BUFFER target='mid.k' persistent=True".
void add_signature(const std::string& text, std::map<std::string, Mark>& to) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": "), target = line.find(" target='");
    if (colon == std::string::npos || target == std::string::npos || target < colon + 2) continue;
    const std::size_t begin = target + 9, end = line.find('\'', begin);
    if (end == std::string::npos) continue;
    const bool persistent = line.find(" persistent=False", end) == std::string::npos;
    to.try_emplace(line.substr(begin, end - begin), Mark{line.substr(colon + 2, target - colon - 2), persistent});
  }
}

}  // namespace

std::map<std::string, Mark> marks(const onnx::GraphProto& graph) {
  std::map<std::string, Mark> all;
  for (const onnx::ValueInfoProto& value : graph.value_info())
    if (std::string kind = property(value, PropertyField::value, kKind); !kind.empty())
      all[value.name()] = {std::move(kind), property(value, PropertyField::value, kPersistent) != "False"};
  add_signature(property(graph, PropertyField::graph, kSignature), all);
  return all;
}

std::map<std::string, std::vector<std::string>> sources(const onnx::GraphProto& graph) {
  std::map<std::string, std::vector<std::string>> all;
  for (const onnx::ValueInfoProto& value : graph.value_info())
    if (const std::string from = property(value, PropertyField::value, kFolded); !from.empty())
      all[value.name()] = python_list(from);
  return all;
}

void copy_marks(const onnx::GraphProto& from, onnx::GraphProto& to) {
  for (const onnx::ValueInfoProto& value : from.value_info()) {
    const bool says = !property(value, PropertyField::value, kKind).empty() ||
                      !property(value, PropertyField::value, kFolded).empty();
    if (!says) continue;
    onnx::ValueInfoProto& copy = *to.add_value_info() = value;
    copy.clear_type();
  }
  set_only_property(to, PropertyField::graph, kSignature, property(from, PropertyField::graph, kSignature));
}

void mark_buffer(onnx::ValueInfoProto& tensor) {
  set_only_property(tensor, PropertyField::value, kKind, "BUFFER");
}

std::vector<std::string> python_list(const std::string& text) {
  std::vector<std::string> all;
  for (std::size_t at = 0; (at = text.find('\'', at)) != std::string::npos;) {
    const std::size_t end = text.find('\'', at + 1);
    if (end == std::string::npos) break;
    all.push_back(text.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return all;
}

}  // namespace annulus
