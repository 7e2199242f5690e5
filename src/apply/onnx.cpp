#include "src/apply/onnx.h"

#include <onnx/onnx_pb.h>

#include "kernels/average_windows.h"
#include "kernels/base/error.h"
#include "src/io/bytes.h"

namespace annulus {
namespace {

constexpr const char* kImages = "images";
constexpr const char* kBatch = "batch";

// Limit of protobuf's messages, minus 1 MiB for the description of the graph.
constexpr std::size_t kMostParameterBytes = (std::size_t{1} << 31) - (std::size_t{1} << 20);

std::size_t parameter_bytes(const Graph& graph) {
  std::size_t bytes = 0;
  for (const Node& node : graph.nodes())
    for (const ParameterDeclaration& p : parameters(node.operation, graph.input_shapes(node, 1)))
      bytes += p.role == Role::metric ? 0 : elements(p.shape) * sizeof(float);
  return bytes;
}

onnx::AttributeProto& attribute(onnx::NodeProto& node, const char* name, onnx::AttributeProto::AttributeType type) {
  onnx::AttributeProto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(type);
  return attribute;
}

void set(onnx::NodeProto& node, const char* name, std::int64_t value) {
  attribute(node, name, onnx::AttributeProto::INT).set_i(value);
}

void set(onnx::NodeProto& node, const char* name, float value) {
  attribute(node, name, onnx::AttributeProto::FLOAT).set_f(value);
}

void set(onnx::NodeProto& node, const char* name, std::initializer_list<std::size_t> values) {
  onnx::AttributeProto& list = attribute(node, name, onnx::AttributeProto::INTS);
  for (const std::size_t value : values) list.add_ints(static_cast<std::int64_t>(value));
}

template <class Windows>
void set_windows(onnx::NodeProto& node, const Windows& o) {
  set(node, "kernel_shape", {o.kernel.height, o.kernel.width});
  set(node, "strides", {o.stride.height, o.stride.width});
  set(node, "pads", {o.padding.top, o.padding.left, o.padding.bottom, o.padding.right});
}

// Describes an input or output; its first dimension is the batch.
void describe(onnx::ValueInfoProto& value, const std::string& name, onnx::TensorProto::DataType type,
              const Shape& shape) {
  value.set_name(name);
  onnx::TypeProto::Tensor& tensor = *value.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(type);
  tensor.mutable_shape()->add_dim()->set_dim_param(kBatch);
  for (std::size_t i = 1; i < shape.size(); ++i)
    tensor.mutable_shape()->add_dim()->set_dim_value(static_cast<std::int64_t>(shape[i]));
}

// Row y has the weights of the pixels whose mean is output y; transposed for columns.
std::vector<float> mean_matrix(const AverageAxis& axis, std::size_t pixels, bool transposed) {
  const std::size_t outputs = axis.windows.size();
  std::vector<float> matrix(outputs * pixels);
  for (std::size_t y = 0; y < outputs; ++y)
    for (std::size_t x = axis.windows[y].begin; x < axis.windows[y].end; ++x)
      matrix[transposed ? x * outputs + y : y * pixels + x] = axis.factors[y];
  return matrix;
}

// Appends a graph's nodes to an ONNX graph. operator() translates the operation of the current node and returns the
// name of its output.
class Translation {
 public:
  Translation(const Graph& graph, const ParameterValues& values, onnx::GraphProto& to)
      : graph_(graph), values_(values), to_(to), names_{kImages, "", ""} {}

  void run() {
    for (const Node& node : graph_.nodes()) {
      node_ = &node;
      shapes_ = graph_.input_shapes(node, 1);
      names_.push_back(std::visit(*this, node.operation));
    }
  }

  std::string operator()(const ImageInput& o) {
    set(add("Cast", {input(0)}, name(".float")), "to", std::int64_t{onnx::TensorProto::FLOAT});
    set(add("Transpose", {name(".float")}, name(".planes")), "perm", {0, 3, 1, 2});
    std::vector<float> scale, shift;
    for (std::size_t c = 0; c < o.mean.size(); ++c) {
      scale.push_back(1 / (255 * o.stddev[c]));
      shift.push_back(-o.mean[c] / o.stddev[c]);
    }
    const Shape per_channel{scale.size(), 1, 1};
    add("Mul", {name(".planes"), constant(name(".scale"), per_channel, scale)}, name(".scaled"));
    add("Add", {name(".scaled"), constant(name(".shift"), per_channel, shift)}, name());
    return name();
  }

  std::string operator()(const Convolution& o) {
    onnx::NodeProto& node = add("Conv", with_parameters(input(0)), name());
    set_windows(node, o);
    set(node, "dilations", {o.dilation.height, o.dilation.width});
    set(node, "group", static_cast<std::int64_t>(o.groups));
    return fused(o);
  }

  std::string operator()(const Dense& o) {
    std::string vector = input(0);
    if (shapes_[0].size() > 2) {
      vector = name(".vector");
      set(add("Flatten", {input(0)}, vector), "axis", std::int64_t{1});
    }
    set(add("Gemm", with_parameters(vector), name()), "transB", std::int64_t{1});
    return fused(o);
  }

  std::string operator()(const MaxPool& o) {
    set_windows(add("MaxPool", {input(0)}, name()), o);
    return fused(o);
  }

  std::string operator()(const AveragePool& o) {
    onnx::NodeProto& node = add("AveragePool", {input(0)}, name());
    set_windows(node, o);
    set(node, "count_include_pad", std::int64_t{o.count_padding});
    return name();
  }

  // ONNX supports only the mean of all pixels. Other means are products with a matrix on each side.
  std::string operator()(const AdaptiveAveragePool& o) {
    const Shape& in = shapes_[0];
    if (o.size == Extent{in[2], in[3]}) return input(0);
    if (o.size == Extent{1}) {
      add("GlobalAveragePool", {input(0)}, name());
      return name();
    }
    const AverageWindows windows = average_windows(o, in);
    const std::string rows =
        constant(name(".of_rows"), {o.size.height, in[2]}, mean_matrix(windows.rows, in[2], false));
    const std::string columns =
        constant(name(".of_columns"), {in[3], o.size.width}, mean_matrix(windows.columns, in[3], true));
    add("MatMul", {rows, input(0)}, name(".rows"));
    add("MatMul", {name(".rows"), columns}, name());
    return name();
  }

  std::string operator()(const BatchNorm& o) {
    set(add("BatchNormalization", with_parameters(input(0)), name()), "epsilon", o.epsilon);
    return fused(o);
  }

  std::string operator()(const Relu&) {
    add("Relu", {input(0)}, name());
    return name();
  }

  std::string operator()(const Add&) {
    add("Add", {input(0), input(1)}, name());
    return name();
  }

  std::string operator()(const Concat& o) {
    std::vector<std::string> inputs;
    for (std::size_t i = 0; i < node_->inputs.size(); ++i) inputs.push_back(input(i));
    set(add("Concat", inputs, name()), "axis", static_cast<std::int64_t>(o.axis));
    return name();
  }

  std::string operator()(const Dropout&) { return input(0); }

  std::string operator()(const SoftmaxCrossEntropy&) {
    add("Identity", {input(0)}, "logits");
    set(add("Softmax", {"logits"}, "probabilities"), "axis", std::int64_t{1});
    return describe_outputs();
  }

  std::string operator()(const BinaryCrossEntropy&) {
    add("Identity", {input(0)}, "logits");
    add("Sigmoid", {"logits"}, "probabilities");
    return describe_outputs();
  }

  template <class Unsupported>
  std::string operator()(const Unsupported& o) {
    fail("layer {}: the export of the operation {} is not supported yet", name(), annulus::name(Operation(o)));
  }

 private:
  std::string describe_outputs() {
    for (const char* output : {"logits", "probabilities"})
      describe(*to_.add_output(), output, onnx::TensorProto::FLOAT, shapes_[0]);
    return "";
  }

  std::string name(const char* suffix = "") const { return node_->name + suffix; }
  std::string input(std::size_t i) const { return names_[node_->inputs[i]]; }

  onnx::NodeProto& add(const char* type, const std::vector<std::string>& inputs, const std::string& output) {
    onnx::NodeProto& node = *to_.add_node();
    node.set_op_type(type);
    node.set_name(output);
    for (const std::string& value : inputs) node.add_input(value);
    node.add_output(output);
    return node;
  }

  // The addition and the ReLU that were fused into the operation.
  template <class Fused>
  std::string fused(const Fused& o) {
    std::string made = name();
    if constexpr (requires { o.add; })
      if (o.add) made = add("Add", {made, input(1)}, name(".add")).output(0);
    if (o.relu) made = add("Relu", {made}, name(".relu")).output(0);
    return made;
  }

  const std::string& constant(const std::string& called, const Shape& shape, std::span<const float> floats) {
    onnx::TensorProto& tensor = *to_.add_initializer();
    tensor.set_name(called);
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    for (const std::size_t extent : shape) tensor.add_dims(static_cast<std::int64_t>(extent));
    tensor.set_raw_data(floats.data(), floats.size_bytes());
    return tensor.name();
  }

  // An input followed by the node's parameters. A dense layer's weights are reshaped to a matrix.
  std::vector<std::string> with_parameters(const std::string& first) {
    std::vector<std::string> inputs{first};
    for (const ParameterDeclaration& p : parameters(node_->operation, shapes_)) {
      const std::string called = name() + "." + p.name;
      const bool matrix = std::holds_alternative<Dense>(node_->operation) && p.shape.size() > 1;
      const Shape shape = matrix ? Shape{p.shape[0], elements(p.shape) / p.shape[0]} : p.shape;
      inputs.push_back(constant(called, shape, values_(called, p.shape)));
    }
    return inputs;
  }

  const Graph& graph_;
  const ParameterValues& values_;
  onnx::GraphProto& to_;
  std::vector<std::string> names_;  // of the graph's values
  const Node* node_ = nullptr;      // the current one
  std::vector<Shape> shapes_;       // of its inputs, for a batch of one
};

}  // namespace

std::string to_onnx(const std::string& name, const Graph& graph, const ParameterValues& values,
                    const std::map<std::string, std::string>& metadata) {
  if (const std::size_t bytes = parameter_bytes(graph); bytes > kMostParameterBytes)
    fail("{} has {} of parameters, but an ONNX file can hold at most 2 GiB", name, format_bytes(bytes));
  onnx::ModelProto model;
  model.set_ir_version(kOnnxFormat);
  model.add_opset_import()->set_version(kOnnxOperators);
  model.set_producer_name("annulus");
  model.set_producer_version(ANNULUS_VERSION);
  for (const auto& [key, value] : metadata) {
    onnx::StringStringEntryProto& entry = *model.add_metadata_props();
    entry.set_key(key);
    entry.set_value(value);
  }
  onnx::GraphProto& to = *model.mutable_graph();
  to.set_name(name);
  describe(*to.add_input(), kImages, onnx::TensorProto::UINT8, graph.shapes(1)[Graph::kImages]);
  Translation(graph, values, to).run();
  return model.SerializeAsString();
}

}  // namespace annulus
