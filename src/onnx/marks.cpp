#include "src/onnx/marks.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "src/onnx/node_scope.h"
#include "src/onnx/properties.h"

namespace annulus {
namespace {

constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr const char* kPersistent = "pkg.torch.export.graph_signature.InputSpec.persistent";
constexpr const char* kSignature = "pkg.torch.export.ExportedProgram.graph_signature";
constexpr const char* kFolded = "pkg.onnxscript.optimizer.folded_from";

struct SignatureLine {
  std::string placeholder, target;
  TensorMark mark;
};

// Reads lines such as "b_mid_k: BUFFER target='mid.k' persistent=True".
std::vector<SignatureLine> signature(const onnx::GraphProto& graph) {
  std::vector<SignatureLine> all;
  std::istringstream lines(property(graph, PropertyField::graph, kSignature));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": "), target = line.find(" target='");
    if (colon == std::string::npos || target == std::string::npos || target < colon + 2) continue;
    const std::size_t begin = target + 9, end = line.find('\'', begin);
    if (end == std::string::npos) continue;
    const bool persistent = line.find(" persistent=False", end) == std::string::npos;
    all.push_back({line.substr(0, colon), line.substr(begin, end - begin),
                   TensorMark{line.substr(colon + 2, target - colon - 2), persistent}});
  }
  return all;
}

}  // namespace

std::map<std::string, TensorMark> marks(const onnx::GraphProto& graph) {
  std::map<std::string, TensorMark> all;
  for (const onnx::ValueInfoProto& value : graph.value_info())
    if (std::string kind = property(value, PropertyField::value, kKind); !kind.empty())
      all.try_emplace(value.name(), TensorMark{kind, property(value, PropertyField::value, kPersistent) != "False"});
  for (const SignatureLine& line : signature(graph)) all.try_emplace(line.target, line.mark);
  return all;
}

std::map<std::string, std::string> placeholders(const onnx::GraphProto& graph) {
  std::map<std::string, std::string> all;
  for (const SignatureLine& line : signature(graph))
    if (line.mark.kind == "PARAMETER" || line.mark.kind == "BUFFER") all.emplace(line.placeholder, line.target);
  return all;
}

bool is_optimized(const onnx::GraphProto& graph) {
  if (!sources(graph).empty()) return true;
  const auto names = placeholders(graph);
  std::set<std::string> stored;
  for (const onnx::TensorProto& tensor : graph.initializer()) stored.insert(tensor.name());
  return std::ranges::any_of(graph.node(), [&](const onnx::NodeProto& node) {
    const TracedOperation traced = traced_operation(node);
    return changed_by_rule(node, "") || std::ranges::any_of(traced.values, [&](const std::string& value) {
             const auto name = names.find(value);
             return name != names.end() && !stored.contains(name->second);
           });
  });
}

void copy_mark(onnx::GraphProto& graph, const std::string& tensor, const std::string& to, const std::string& parameter,
               const std::string& to_parameter) {
  for (const onnx::ValueInfoProto& value : graph.value_info()) {
    if (value.name() != tensor) continue;
    onnx::ValueInfoProto copy = value;
    copy.set_name(to);
    if (std::string from = property(value, PropertyField::value, kFolded); !from.empty()) {
      const std::string quoted = "'" + parameter + "'";
      if (const std::size_t at = from.find(quoted); at != std::string::npos)
        set_only_property(copy, PropertyField::value, kFolded,
                          from.replace(at, quoted.size(), "'" + to_parameter + "'"));
    }
    *graph.add_value_info() = std::move(copy);
    return;
  }
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
