#include "src/onnx/trained_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "src/onnx/buffer_values.h"
#include "src/onnx/digits.h"
#include "src/onnx/marks.h"
#include "src/onnx/node_scope.h"
#include "src/onnx/tensor.h"

namespace annulus {
namespace {

using Decision = TrainedTensors::Decision;

constexpr const char* kComputed =
    "computed by the exporter: if from parameters, export with do_constant_folding=False to train them";

// Whether a text is `stem` and a number.
bool is_numbered(std::string_view text, std::string_view stem) {
  return text.starts_with(stem) && is_number(text.substr(stem.size()));
}

// Removes a repeated operation's number: "view" from "view_12".
std::string_view without_number(std::string_view name) {
  const std::size_t at = name.rfind('_');
  return at != std::string_view::npos && is_number(name.substr(at + 1)) ? name.substr(0, at) : name;
}

// Whether a value is numbered by the exporter: "val_12", or "val_12_2" for a copy.
bool is_numbered_value(std::string_view name) {
  return is_numbered(name, "val_") || is_numbered(without_number(name), "val_");
}

// Whether a value within torch.export's graph, by name, has the same elements as the value before.
bool is_view(std::string_view name) {
  static constexpr std::array<std::string_view, 14> kViews{
      "view",  "reshape", "unsqueeze", "squeeze",    "permute",  "transpose", "t",
      "alias", "clone",   "detach",    "contiguous", "_to_copy", "flatten",   "_unsafe_view"};
  return is_numbered_value(name) || std::ranges::find(kViews, without_number(name)) != kViews.end();
}

// Whether torch.export's operation reads its weights as they are, reshaped or transposed.
bool reads_views(std::string_view target) {
  static constexpr std::array<std::string_view, 10> kOperations{
      "aten.linear.",        "aten.prelu.", "aten.group_norm.", "aten.native_group_norm.",
      "aten.instance_norm.", "aten.conv",   "aten.addmm.",      "aten.mm.",
      "aten.bmm.",           "aten.matmul."};
  return std::ranges::any_of(kOperations, [&](std::string_view name) { return target.starts_with(name); });
}

// The forms in which exporters make up names: "onnx::MatMul_12", "/a/b/Constant_output_0", "12". Any other may be a
// parameter's: "val_scale", "const_bias".
class MadeUpNames {
 public:
  explicit MadeUpNames(const onnx::GraphProto& graph) {
    for (const onnx::NodeProto& node : graph.node())
      for (const std::string& output : node.output()) numbers_values_ = numbers_values_ || is_value_number(output);
  }

  bool contains(std::string_view name) const {
    return name.starts_with("onnx::") || name.starts_with('/') || is_number(name) ||
           is_numbered(name, "const_fold_opt__") || (numbers_values_ && is_value_number(name));
  }

 private:
  static bool is_value_number(std::string_view name) { return is_numbered(name, "val_") || is_numbered(name, "_val_"); }

  bool numbers_values_ = false;  // whether the exporter named nodes' values val_0, val_1, ...
};

Decision of_name(const onnx::TensorProto& tensor, const MadeUpNames& made_up, bool of_pytorch) {
  if (made_up.contains(tensor.name())) return {Training::in_layers, kComputed, ""};
  if (tensor.dims_size() == 0 && !of_pytorch) return {Training::in_layers, TrainedTensors::kConstant, tensor.name()};
  return {Training::always, "", tensor.name()};
}

// Decides on tensors that torch.export marked, and on tensors that the exporter's optimizer computed.
class ByMarks {
 public:
  explicit ByMarks(const onnx::GraphProto& graph) : marks_(marks(graph)), sources_(sources(graph)) {
    for (const onnx::TensorProto& tensor : graph.initializer()) ++uses_[tensor.name()];
    for (const onnx::NodeProto& node : graph.node())
      if (const std::string target = traced_operation(node).target; !target.empty() && !reads_views(target))
        inside_.insert(node.input().begin(), node.input().end());
    for (const auto& [name, from] : sources_)
      for (const std::string& source : from) ++uses_[source];
  }

  // Whether the marks say what every tensor is.
  bool complete() const {
    return std::ranges::any_of(marks_, [](const auto& mark) { return mark.second.kind == "PARAMETER"; });
  }

  bool has(const std::string& tensor) const { return marks_.contains(tensor); }

  std::vector<std::string> parameters() const {
    std::vector<std::string> all;
    for (const auto& [name, mark] : marks_)
      if (mark.kind == "PARAMETER") all.push_back(name);
    return all;
  }

  Decision operator()(const std::string& tensor) const {
    if (const auto mark = marks_.find(tensor); mark != marks_.end()) return of_mark(tensor, mark->second);
    const auto from = sources_.find(tensor);
    if (from == sources_.end()) return {Training::in_layers, kComputed, ""};
    const auto parameters = marked(from->second, "PARAMETER");
    if (parameters.empty())
      return {Training::never, marked(from->second, "BUFFER").empty() ? "" : TrainedTensors::kBuffer, ""};
    const bool one = parameters.size() == 1 && uses_.at(parameters[0]) == 1;
    const bool inside = is_numbered_value(tensor) && inside_.contains(tensor);
    if (one && !inside && is_view(tensor) &&
        std::ranges::all_of(from->second, [&](const auto& n) { return n == parameters[0] || is_view(n); }))
      return {Training::always, "", parameters[0]};
    return {Training::in_layers,
            fmt::format("computed by the exporter from {}: export with optimize=False to train it",
                        fmt::join(parameters, ", ")),
            ""};
  }

 private:
  static Decision of_mark(const std::string& tensor, const TensorMark& mark) {
    if (mark.kind == "PARAMETER") return {Training::always, "", tensor};
    if (mark.kind != "BUFFER") return {Training::never, TrainedTensors::kConstant, ""};
    return {Training::never, TrainedTensors::kBuffer, mark.persistent ? tensor : ""};
  }

  std::vector<std::string> marked(const std::vector<std::string>& names, const char* kind) const {
    std::vector<std::string> all;
    for (const std::string& name : names)
      if (const auto mark = marks_.find(name); mark != marks_.end() && mark->second.kind == kind) all.push_back(name);
    return all;
  }

  const std::map<std::string, TensorMark> marks_;
  const std::map<std::string, std::vector<std::string>> sources_;
  std::map<std::string, std::size_t> uses_;  // by stored tensors
  std::set<std::string> inside_;             // values that operations read which compute with parameters themselves
};

}  // namespace

TrainedTensors::TrainedTensors(const OnnxFile& file) {
  const ByMarks by_marks(file.graph());
  const MadeUpNames made_up(file.graph());
  const bool of_pytorch = file.producer() == "pytorch" || file.producer() == "annulus";
  marked_ = by_marks.complete();
  const auto buffers = marked_ ? std::map<const onnx::TensorProto*, const char*>() : buffers_by_values(file.graph());
  constants_in_layers_ = !marked_;
  std::set<std::string> found;
  for (const onnx::TensorProto& tensor : file.graph().initializer()) {
    const bool by_mark = marked_ || by_marks.has(tensor.name());
    Decision decision = by_mark ? by_marks(tensor.name()) : of_name(tensor, made_up, of_pytorch);
    if (const auto buffer = buffers.find(&tensor); buffer != buffers.end() && !by_mark)
      decision = {Training::never, buffer->second, decision.parameter};
    if (!is_real(tensor)) {
      decision.training = Training::never;
      if (!by_mark && !of_pytorch) decision.parameter.clear();  // a reshape's shape, ...
    }
    if (decision.training == Training::always) constants_in_layers_ = false;
    found.insert(decision.parameter);
    decisions_.emplace(&tensor, std::move(decision));
  }
  for (const auto& [tensor, names] : file.separation().aliases) found.insert(names.begin(), names.end());
  std::ranges::copy_if(by_marks.parameters(), std::back_inserter(missing_),
                       [&](const std::string& name) { return !found.contains(name); });
}

}  // namespace annulus
