#include "src/onnx/trained_summary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "src/onnx/node_scope.h"
#include "src/onnx/reader.h"

namespace annulus {
namespace {

std::string some(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;
  const std::size_t shown = names.size() > kMost ? kMost - 1 : names.size();
  std::string text =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace

std::string lost_parameters(const OnnxFile& file, const TrainedTensors& trained) {
  if (file.optimized() && !trained.missing().empty())
    return fmt::format("the exporter merged or dropped {} of PyTorch's parameters ({}): export with optimize=False",
                       trained.missing().size(), some(trained.missing()));
  const auto merged = std::ranges::find_if(
      file.graph().node(), [](const onnx::NodeProto& node) { return changed_by_rule(node, "FuseBatchNorm"); });
  if (merged == file.graph().node().end()) return "";
  return fmt::format("node {} ({}): the exporter merged a batch norm into it: export with optimize=False",
                     merged->name(), merged->op_type());
}

namespace {

// Why a tensor that nodes read is not trained; empty if it is trained, or if nothing depends on it.
std::string reason_of(const Reader& reader, const onnx::TensorProto& tensor) {
  const auto& decision = reader.trained().of(tensor);
  if (const char* reason = reader.untrained(tensor)) return reason;
  if (decision.training != Training::always) return decision.reason;
  return reader.depends_on_values(tensor) ? "a constant of an operator" : "";
}

}  // namespace

std::string TrainedSummary::text() const {
  std::string line =
      fmt::format("trained: {} tensor{}; not trained: {}", trained, trained == 1 ? "" : "s", not_trained.size());
  if (!not_trained.empty()) line += fmt::format(" ({})", some(not_trained));
  if (!unused.empty()) line += fmt::format("; the output does not depend on {} ({})", unused.size(), some(unused));
  return line;
}

TrainedSummary summarize(const Reader& reader, const OnnxFile& file, const Graph& graph,
                         const std::set<const onnx::TensorProto*>& changed, std::vector<std::string>& notes) {
  TrainedSummary summary;
  for (const Node& node : graph.nodes())
    for (const ParameterDeclaration& parameter : graph.parameters(node)) summary.trained += trained(parameter.role);
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const onnx::TensorProto& tensor : file.graph().initializer()) {
    if (!is_real(tensor) || changed.contains(&tensor)) continue;
    const std::string reason = reader.reads(tensor) ? reason_of(reader, tensor) : "";
    const bool number = tensor.dims_size() == 0 && reason == TrainedTensors::kConstant;
    if (!reason.empty() && !number) {
      summary.not_trained.push_back(tensor.name());
      by_reason[reason].push_back(tensor.name());
    } else if (reason.empty() && reader.trained().of(tensor).training == Training::always) {
      summary.unused.push_back(tensor.name());
    }
  }
  for (const auto& [reason, names] : by_reason)
    if (reason != TrainedTensors::kBuffer && reason != TrainedTensors::kConstant)
      notes.push_back(fmt::format("{} {} not trained: {}", some(names), names.size() == 1 ? "is" : "are", reason));
  if (const auto& missing = reader.trained().missing(); !missing.empty())
    notes.push_back(
        fmt::format("the network does not use {} of PyTorch's parameters ({})", missing.size(), some(missing)));
  return summary;
}

}  // namespace annulus
