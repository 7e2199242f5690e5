#include "src/onnx/restore_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/onnx/attributes.h"
#include "src/onnx/file.h"
#include "src/onnx/marks.h"
#include "src/onnx/node_scope.h"
#include "src/onnx/tensor.h"

namespace annulus {
namespace {

bool is_comparable(const onnx::TensorProto& a, const onnx::TensorProto& b) {
  return !OnnxFile::stripped(a) && !OnnxFile::stripped(b) && a.data_type() == b.data_type();
}

bool is_equal(const onnx::TensorProto& a, const onnx::TensorProto& b) {
  return is_comparable(a, b) && checked_shape(a) == checked_shape(b) && read_tensor(a).reals == read_tensor(b).reals;
}

bool is_transpose(const onnx::TensorProto& tensor, const onnx::TensorProto& of) {
  const Shape shape = checked_shape(tensor), other = checked_shape(of);
  if (!is_comparable(tensor, of) || shape.size() != 2 || other != Shape{shape[1], shape[0]}) return false;
  const std::vector<double> a = read_tensor(tensor).reals, b = read_tensor(of).reals;
  for (std::size_t row = 0; row < shape[0]; ++row)
    for (std::size_t column = 0; column < shape[1]; ++column)
      if (a[row * shape[1] + column] != b[column * shape[0] + row]) return false;
  return true;
}

// Makes `node` the graph's first node, which transposes `from` into `to`.
void prepend_transpose(onnx::GraphProto& graph, const std::string& from, const std::string& to,
                       onnx::NodeProto node = {}) {
  node.clear_input();
  node.clear_output();
  node.clear_attribute();
  node.set_name(to);
  node.set_op_type("Transpose");
  node.add_input(from);
  node.add_output(to);
  onnx::AttributeProto& order = *node.add_attribute();
  order.set_name("perm");
  order.set_type(onnx::AttributeProto::INTS);
  order.add_ints(1);
  order.add_ints(0);
  *graph.add_node() = std::move(node);
  for (int i = graph.node_size() - 1; i > 0; --i) graph.mutable_node()->SwapElements(i, i - 1);
}

void erase_tensors(onnx::GraphProto& graph, std::vector<int> removed) {
  std::ranges::sort(removed, std::greater());
  for (const int i : removed) graph.mutable_initializer()->DeleteSubrange(i, 1);
}

void erase_value(onnx::GraphProto& graph, const std::string& name) {
  auto& values = *graph.mutable_value_info();
  for (int i = values.size(); i-- > 0;)
    if (values[i].name() == name) values.DeleteSubrange(i, 1);
}

// Transposes a stored matrix into bytes; nothing if it stores no values.
std::optional<onnx::TensorProto> transposed(const onnx::TensorProto& matrix, const std::string& name) {
  const Shape shape = checked_shape(matrix);
  std::string raw = matrix.raw_data();
  if (raw.empty() && matrix.data_type() == onnx::TensorProto::FLOAT)
    raw.assign(reinterpret_cast<const char*>(matrix.float_data().data()), sizeof(float) * elements(shape));
  if (shape.size() != 2 || raw.empty()) return std::nullopt;
  const std::size_t bytes = raw.size() / elements(shape);
  std::string values(raw.size(), '\0');
  for (std::size_t row = 0; row < shape[0]; ++row)
    for (std::size_t column = 0; column < shape[1]; ++column)
      raw.copy(&values[(column * shape[0] + row) * bytes], bytes, (row * shape[1] + column) * bytes);
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(matrix.data_type());
  tensor.add_dims(matrix.dims(1));
  tensor.add_dims(matrix.dims(0));
  tensor.set_raw_data(std::move(values));
  return tensor;
}

// Returns the nodes that read a tensor as a linear layer's weights; nothing if a node reads it otherwise.
std::optional<std::vector<int>> linear_readers(const onnx::GraphProto& graph, const std::string& tensor) {
  std::vector<int> readers;
  for (int i = 0; i < graph.node_size(); ++i) {
    const onnx::NodeProto& node = graph.node(i);
    const auto reads = std::ranges::count(node.input(), tensor);
    if (reads == 0) continue;
    const bool product =
        node.op_type() == "MatMul" || (node.op_type() == "Gemm" && Attributes(node).whole("transB", 0) == 0);
    if (reads > 1 || node.input(1) != tensor || !product || traced_operation(node).target != "aten.linear.default")
      return std::nullopt;
    readers.push_back(i);
  }
  return readers;
}

// Turns linear layers' transposed weights into the parameter, which each layer transposes by itself.
void restore_linear_weights(onnx::GraphProto& graph) {
  std::map<std::string, int> stored;
  for (int i = 0; i < graph.initializer_size(); ++i) stored[graph.initializer(i).name()] = i;
  std::vector<int> removed;
  for (const auto& [name, from] : sources(graph)) {
    const auto found = stored.find(name);
    if (found == stored.end() || from.size() != 1 || !is_real(graph.initializer(found->second))) continue;
    const auto readers = linear_readers(graph, name);
    if (!readers || readers->empty()) continue;
    const auto parameter = stored.find(from[0]);
    if (parameter == stored.end()) {
      auto tensor = transposed(graph.initializer(found->second), from[0]);
      if (!tensor) continue;
      stored[from[0]] = graph.initializer_size();
      *graph.add_initializer() = std::move(*tensor);
    } else if (!is_transpose(graph.initializer(found->second), graph.initializer(parameter->second))) {
      continue;
    }
    for (std::size_t i = 0; i < readers->size(); ++i) {
      onnx::NodeProto& reader = *graph.mutable_node((*readers)[i] + static_cast<int>(i));
      const std::string matrix = i == 0 ? name : fmt::format("{}.{}", name, i);
      reader.set_input(1, matrix);
      prepend_transpose(graph, from[0], matrix, onnx::NodeProto(reader));
    }
    removed.push_back(found->second);
    erase_value(graph, name);
  }
  erase_tensors(graph, std::move(removed));
}

void read_instead(onnx::GraphProto& graph, const std::string& tensor, const std::string& instead) {
  for (onnx::NodeProto& node : *graph.mutable_node())
    for (std::string& input : *node.mutable_input())
      if (input == tensor) input = instead;
}

// Merges equal tensors, and transposes, that are computed from the same parameter.
void restore_views(onnx::GraphProto& graph) {
  std::map<std::string, int> stored;
  for (int i = 0; i < graph.initializer_size(); ++i) stored[graph.initializer(i).name()] = i;
  std::map<std::string, std::string> first;  // by parameter: the tensor that is kept
  std::vector<int> removed;
  for (const auto& [name, from] : sources(graph)) {
    const auto found = stored.find(name);
    if (found == stored.end() || from.size() != 1 || !is_real(graph.initializer(found->second))) continue;
    const bool beside = stored.contains(from[0]);
    const auto [kept, added] = first.try_emplace(from[0], beside ? from[0] : name);
    if (added && !beside) continue;
    const onnx::TensorProto &tensor = graph.initializer(found->second),
                            &other = graph.initializer(stored.at(kept->second));
    // Beside the parameter, a symmetric matrix is a transpose; beside another transpose it is the same.
    if (!beside && is_equal(tensor, other))
      read_instead(graph, name, kept->second);
    else if (is_transpose(tensor, other))
      prepend_transpose(graph, kept->second, name);
    else
      continue;
    removed.push_back(found->second);
    erase_value(graph, name);
  }
  erase_tensors(graph, std::move(removed));
}

// Ties a transpose that PyTorch's older exporter stored beside the parameter, such as a language model's tied head.
void restore_folded_transposes(onnx::GraphProto& graph) {
  constexpr std::string_view kTransposed = "onnx::MatMul_";
  std::vector<int> removed;
  for (int i = 0; i < graph.initializer_size(); ++i) {
    const onnx::TensorProto& tensor = graph.initializer(i);
    if (!tensor.name().starts_with(kTransposed) || !is_real(tensor) || elements(checked_shape(tensor)) < 2) continue;
    const auto parameter = std::ranges::find_if(graph.initializer(), [&](const onnx::TensorProto& other) {
      return !other.name().starts_with(kTransposed) && is_real(other) && is_transpose(tensor, other);
    });
    if (parameter == graph.initializer().end()) continue;
    prepend_transpose(graph, parameter->name(), tensor.name());
    removed.push_back(i);
  }
  erase_tensors(graph, std::move(removed));
}

// The name in torch.export's graph for the bias that the optimizer removed from a node; empty if it removed none.
std::string removed_bias(const onnx::NodeProto& node) {
  static constexpr std::array<std::string_view, 5> kOperations{"aten.linear.default", "aten.conv1d.default",
                                                               "aten.conv2d.default", "aten.conv3d.default",
                                                               "aten.convolution.default"};
  if (node.input_size() != 2 || !changed_by_rule(node, "RemoveOptionalBiasFrom")) return "";
  const TracedOperation traced = traced_operation(node);
  const bool listed = std::ranges::find(kOperations, traced.target) != kOperations.end();
  return listed && traced.values.size() == 3 ? traced.values[2] : "";
}

// How many outputs, or channels, a node has; nothing if its operator has no bias.
std::optional<std::int64_t> units(const onnx::NodeProto& node, const onnx::TensorProto& weight) {
  const Attributes attributes(node);
  if (node.op_type() == "Conv" && weight.dims_size() > 0) return weight.dims(0);
  if (node.op_type() == "ConvTranspose" && weight.dims_size() > 1) return weight.dims(1) * attributes.whole("group", 1);
  if (node.op_type() == "Gemm" && weight.dims_size() == 2) return weight.dims(attributes.whole("transB", 0) ? 0 : 1);
  return std::nullopt;
}

void restore_biases(onnx::GraphProto& graph) {
  const std::map<std::string, std::string> names = placeholders(graph);
  std::map<std::string, onnx::TensorProto> tensors;
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    onnx::TensorProto& form = tensors[tensor.name()];  // without values
    form.set_data_type(tensor.data_type());
    *form.mutable_dims() = tensor.dims();
  }
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    const auto bias = names.find(removed_bias(node));
    const auto weight = bias == names.end() ? tensors.end() : tensors.find(node.input(1));
    if (weight == tensors.end()) continue;
    const auto count = units(node, weight->second);
    if (!count || *count <= 0) continue;
    onnx::TensorProto zeros;
    zeros.set_name(bias->second);
    zeros.set_data_type(weight->second.data_type());
    zeros.add_dims(*count);
    zeros.set_raw_data(std::string(raw_bytes(zeros), '\0'));
    if (tensors.try_emplace(bias->second, zeros).second) *graph.add_initializer() = std::move(zeros);
    node.add_input(bias->second);
  }
}

}  // namespace

void restore_tensors(onnx::GraphProto& graph) {
  restore_linear_weights(graph);
  restore_views(graph);
  restore_folded_transposes(graph);
  restore_biases(graph);
}

}  // namespace annulus
