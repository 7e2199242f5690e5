#pragma once

#include <onnx/onnx_pb.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/graph/state_dict.h"
#include "models/rewrites/freeze.h"
#include "src/onnx/read.h"
#include "tests/unit/error_text.h"

namespace annulus::test {

using Names = std::vector<std::string>;
using Wholes = std::vector<std::int64_t>;
using AttributeValue = std::variant<std::int64_t, float, std::string, Wholes>;
using AttributeValues = std::vector<std::pair<std::string, AttributeValue>>;

inline void set(onnx::AttributeProto& to, std::int64_t value) {
  to.set_type(onnx::AttributeProto::INT);
  to.set_i(value);
}

inline void set(onnx::AttributeProto& to, float value) {
  to.set_type(onnx::AttributeProto::FLOAT);
  to.set_f(value);
}

inline void set(onnx::AttributeProto& to, const std::string& value) {
  to.set_type(onnx::AttributeProto::STRING);
  to.set_s(value);
}

inline void set(onnx::AttributeProto& to, const Wholes& values) {
  to.set_type(onnx::AttributeProto::INTS);
  to.mutable_ints()->Assign(values.begin(), values.end());
}

inline void set_values(onnx::TensorProto& to, const std::vector<float>& values) {
  to.set_data_type(onnx::TensorProto::FLOAT);
  to.mutable_float_data()->Assign(values.begin(), values.end());
}

inline void set_values(onnx::TensorProto& to, const Wholes& values) {
  to.set_data_type(onnx::TensorProto::INT64);
  to.mutable_int64_data()->Assign(values.begin(), values.end());
}

inline void set_image(onnx::ValueInfoProto& to, const std::string& name, const Wholes& extents) {
  to.set_name(name);
  to.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
  for (const std::int64_t extent : extents) {
    auto& dimension = *to.mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim();
    if (extent >= 0)
      dimension.set_dim_value(extent);
    else
      dimension.set_dim_param("open");
  }
}

// An ONNX file with images x and the output y. Extents of -1 are open.
class OnnxModel {
 public:
  explicit OnnxModel(const Wholes& image = {-1, 2, 4, 4}) {
    proto.set_ir_version(8);
    proto.add_opset_import()->set_version(17);
    set_image(*graph().add_input(), "x", image);
    graph().add_output()->set_name("y");
  }

  onnx::ModelProto proto;

  onnx::GraphProto& graph() { return *proto.mutable_graph(); }

  // Appends a node that is named after its first output.
  OnnxModel& node(const std::string& op, const Names& inputs, const Names& outputs,
                  const AttributeValues& attributes = {}) {
    onnx::NodeProto& node = *graph().add_node();
    node.set_name("n_" + outputs.at(0));
    node.set_op_type(op);
    node.mutable_input()->Assign(inputs.begin(), inputs.end());
    node.mutable_output()->Assign(outputs.begin(), outputs.end());
    for (const auto& [name, value] : attributes) {
      onnx::AttributeProto& attribute = *node.add_attribute();
      attribute.set_name(name);
      std::visit([&](const auto& given) { set(attribute, given); }, value);
    }
    return *this;
  }

  template <class Value>
  OnnxModel& tensor(const std::string& name, const Wholes& shape, const std::vector<Value>& values) {
    onnx::TensorProto& tensor = *graph().add_initializer();
    tensor.set_name(name);
    tensor.mutable_dims()->Assign(shape.begin(), shape.end());
    set_values(tensor, values);
    return *this;
  }

  OnnxModel& number(const std::string& name, float value) { return tensor<float>(name, {}, {value}); }

  // A parameter with the values 0, 1, 2...
  OnnxModel& parameter(const std::string& name, const Wholes& shape) {
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
    return tensor(name, shape, values);
  }

  // The mean image of `from`, of `channels`, and a dense layer of 3 classes.
  OnnxModel& classify(const std::string& from, std::int64_t channels) {
    parameter("head.weight", {3, channels});
    node("GlobalAveragePool", {from}, {"pooled"});
    node("Flatten", {"pooled"}, {"flat"});
    return node("Gemm", {"flat", "head.weight"}, {"y"}, {{"transB", 1}});
  }

  std::string bytes() const { return proto.SerializeAsString(); }
  OnnxFile file() const { return OnnxFile::parse(bytes(), "net.onnx"); }
  ImportedNetwork read() const {
    const OnnxFile parsed = file();
    return read_network(parsed, exported_task(parsed));
  }
  std::string error() const {
    return error_of([&] { read(); });
  }
  Names problems() const {
    const OnnxFile parsed = file();
    return annulus::problems(parsed, exported_task(parsed));
  }
};

inline std::set<std::string> state_names(const Graph& graph) {
  std::set<std::string> names;
  for (const StateTensor& tensor : state_dict(graph)) names.insert(tensor.name);
  return names;
}

inline std::set<std::string> trained_names(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes())
    for (const ParameterDeclaration& p : graph.parameters(node))
      if (trained(p.role)) names.insert(parameter_name(node, p.name));
  return names;
}

// "weight = mid.weight" of each parameter that a layer shares with an earlier one.
inline std::set<std::string> shared_names(const Graph& graph) {
  std::set<std::string> all;
  for (const Node& node : graph.nodes())
    for (const auto& [parameter, name] : node.shared) all.insert(node.inputs.empty() ? name : parameter + " = " + name);
  return all;
}

// Returns a network whose first layer makes images with 4 channels, c.
inline OnnxModel convolved() {
  return OnnxModel().parameter("conv.weight", {4, 2, 1, 1}).node("Conv", {"x", "conv.weight"}, {"c"});
}

// The network, which must be the same without the values of its parameters, as a checkpoint has it.
inline ImportedNetwork read_twice(const OnnxModel& model) {
  const OnnxFile file = model.file();
  const Task task = exported_task(file);
  ImportedNetwork network = read_network(file, task);
  const OnnxFile stripped = OnnxFile::parse(without_parameters(file, network), "stripped");
  const ImportedNetwork again = read_network(stripped, task);
  CHECK(again.graph.description() == network.graph.description());
  for (const auto names : {state_names, trained_names, shared_names}) CHECK(names(again.graph) == names(network.graph));
  CHECK(frozen_names(again.graph) == frozen_names(network.graph));
  CHECK(again.trained.text() == network.trained.text());
  return network;
}

}  // namespace annulus::test
