#include "src/onnx/image_layout.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "src/onnx/attributes.h"

namespace annulus {
namespace {

// Whether an operator keeps the input's dimensions.
bool keeps_layout(std::string_view op) {
  static const std::set<std::string_view> all{"Add", "Cast", "CastLike", "Clip", "Div", "Identity",
                                              "Max", "Min",  "Mul",      "Neg",  "Pow", "Sub"};
  return all.contains(op);
}

}  // namespace

bool reads_channels_last(const onnx::GraphProto& graph, const std::string& input) {
  std::set<std::string_view> images{input};
  for (const onnx::NodeProto& node : graph.node()) {
    if (std::ranges::none_of(node.input(), [&](const std::string& read) { return images.contains(read); })) continue;
    if (node.op_type() == "Transpose" && Attributes(node).wholes("perm") == std::vector<std::int64_t>{0, 3, 1, 2})
      return true;
    if (keeps_layout(node.op_type())) images.insert(node.output().begin(), node.output().end());
  }
  return false;
}

}  // namespace annulus
