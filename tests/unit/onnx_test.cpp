#include "src/onnx/write.h"

#include <onnx/checker.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <map>

#include "models/rewrites/fusion.h"
#include "models/zoo/zoo.h"
#include "src/onnx/read.h"
#include "tests/unit/error_text.h"
#include "tests/unit/random_values.h"

namespace annulus {
namespace {

using Catch::Contains;

// Parses the file, after ONNX's own checker has accepted it, and infers the shape of every value.
onnx::ModelProto translated(const Graph& graph, const ParameterValues& values) {
  onnx::ModelProto model;
  REQUIRE(model.ParseFromString(to_onnx("tried", graph, values, {{"step", "7"}})));
  onnx::checker::check_model(model);
  // With its types checked, and every error thrown.
  onnx::shape_inference::InferShapes(model, onnx::OpSchemaRegistry::Instance(), {true, 1});
  return model;
}

onnx::ModelProto translated(const Graph& graph) {
  std::vector<float> zeros;
  return translated(graph, [&](const std::string&, const Shape& shape) {
    zeros.resize(std::max(zeros.size(), elements(shape)));
    return std::span<const float>(zeros).first(elements(shape));
  });
}

std::map<std::string, int> operators(const onnx::ModelProto& model) {
  std::map<std::string, int> count;
  for (const onnx::NodeProto& node : model.graph().node()) ++count[node.op_type()];
  return count;
}

const onnx::NodeProto& node_named(const onnx::ModelProto& model, const std::string& name) {
  for (const onnx::NodeProto& node : model.graph().node())
    if (node.name() == name) return node;
  FAIL("there is no node " << name);
  throw;
}

const onnx::TensorProto& initializer(const onnx::ModelProto& model, const std::string& name) {
  for (const onnx::TensorProto& tensor : model.graph().initializer())
    if (tensor.name() == name) return tensor;
  FAIL("there is no initializer " << name);
  throw;
}

const onnx::TensorProto& constant(const onnx::ModelProto& model, const std::string& name) {
  for (const onnx::NodeProto& node : model.graph().node())
    if (node.op_type() == "Constant" && node.output(0) == name) return node.attribute(0).t();
  FAIL("there is no constant " << name);
  throw;
}

const onnx::AttributeProto& attribute(const onnx::NodeProto& node, const std::string& name) {
  for (const onnx::AttributeProto& found : node.attribute())
    if (found.name() == name) return found;
  FAIL(node.name() << " has no attribute " << name);
  throw;
}

std::vector<std::int64_t> integers(const onnx::NodeProto& node, const std::string& name) {
  const auto& values = attribute(node, name).ints();
  return {values.begin(), values.end()};
}

float real(const onnx::NodeProto& node, const std::string& name) {
  return attribute(node, name).f();
}

std::string text(const onnx::NodeProto& node, const std::string& name) {
  return attribute(node, name).s();
}

std::vector<std::int64_t> dimensions(const onnx::TensorProto& tensor) {
  return {tensor.dims().begin(), tensor.dims().end()};
}

std::vector<float> floats(const onnx::TensorProto& tensor) {
  std::vector<float> values(tensor.raw_data().size() / sizeof(float));
  std::memcpy(values.data(), tensor.raw_data().data(), tensor.raw_data().size());
  return values;
}

// Compares the shapes of the nodes that have an ONNX node of their name. Returns their number.
std::size_t check_shapes(const Graph& graph, const onnx::ModelProto& model) {
  const std::vector<Shape> shapes = graph.shapes(1);
  std::size_t checked = 0;
  for (const onnx::ValueInfoProto& value : model.graph().value_info())
    for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
      if (graph.nodes()[i].name != value.name()) continue;
      INFO(value.name());
      const onnx::TensorShapeProto& found = value.type().tensor_type().shape();
      const Shape& expected = shapes[Graph::output(i)];
      REQUIRE(static_cast<std::size_t>(found.dim_size()) == expected.size());
      CHECK(found.dim(0).dim_param() == "batch");
      for (int d = 1; d < found.dim_size(); ++d)
        CHECK(static_cast<std::size_t>(found.dim(d).dim_value()) == expected[static_cast<std::size_t>(d)]);
      ++checked;
    }
  return checked;
}

// Every operation, and windows that are not square.
Graph every_operation() {
  Graph g({11, 13, 2});
  Value x = g.add("input", ImageInput{{0.5f, 0.25f}, {0.5f, 0.125f}}, {Graph::kImages});
  Value a = g.add("conv", Convolution{.channels = 3, .kernel = {1, 7}, .stride = 2, .padding = {0, 3}}, {x});
  a = g.add("norm", BatchNorm{.epsilon = 1e-3f, .momentum = 0.25f}, {a});
  a = g.add("relu", Relu{}, {a});
  Value b = g.add("max", MaxPool{.kernel = 3, .stride = 2, .padding = 1}, {x});
  b = g.add("mean", AveragePool{.kernel = 3, .stride = 1, .padding = 1}, {b});
  x = g.add("concat", Concat{}, {a, b});
  x = g.add("add", Add{}, {x, x});
  x = g.add("dropout", Dropout{0.5f}, {x, Graph::kSampleKeys});
  x = g.add("parts", AdaptiveAveragePool{{4, 9}}, {x});
  x = g.add("dense1", Dense{6}, {x});
  x = g.add("dense2", Dense{4}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  return g;
}

Graph default_graph(const std::string& model, std::size_t side) {
  return make_model(model, neutral_task({side, side, 3}, 10));
}

}  // namespace

TEST_CASE("every operation is exported to ONNX", "[onnx]") {
  const Graph graph = every_operation();
  const onnx::ModelProto model = translated(graph);
  CHECK(operators(model) == std::map<std::string, int>{{"Add", 2},
                                                       {"AveragePool", 1},
                                                       {"BatchNormalization", 1},
                                                       {"Cast", 1},
                                                       {"Concat", 1},
                                                       {"Constant", 4},
                                                       {"Conv", 1},
                                                       {"Flatten", 1},
                                                       {"Gemm", 2},
                                                       {"Identity", 1},
                                                       {"MatMul", 2},
                                                       {"MaxPool", 1},
                                                       {"Mul", 1},
                                                       {"Relu", 1},
                                                       {"Softmax", 1},
                                                       {"Transpose", 1}});
  CHECK(check_shapes(graph, model) == graph.nodes().size() - 2);  // all but dropout, and the loss
  CHECK(integers(node_named(model, "conv"), "kernel_shape") == std::vector<std::int64_t>{1, 7});
  CHECK(integers(node_named(model, "conv"), "strides") == std::vector<std::int64_t>{2, 2});
  CHECK(integers(node_named(model, "conv"), "pads") == std::vector<std::int64_t>{0, 3, 0, 3});
  CHECK(real(node_named(model, "norm"), "epsilon") == 1e-3f);
  CHECK(real(node_named(model, "norm"), "momentum") == 0.75f);
  CHECK(node_named(model, "parts.rows").input(1) == "add");  // dropout is omitted
  CHECK(dimensions(initializer(model, "conv.weight")) == std::vector<std::int64_t>{3, 2, 1, 7});
  CHECK(dimensions(initializer(model, "dense1.weight")) == std::vector<std::int64_t>{6, 5 * 4 * 9});
  CHECK(dimensions(initializer(model, "dense2.weight")) == std::vector<std::int64_t>{4, 6});
  CHECK(floats(constant(model, "input.scale")) == std::vector<float>{1 / 127.5f, 1 / 31.875f});
  CHECK(floats(constant(model, "input.shift")) == std::vector<float>{-1, -2});
}

TEST_CASE("layers with the names of the exported inputs and outputs are renamed", "[onnx]") {
  Graph g({4, 4, 1});
  Value x = g.add("images", ImageInput{{0}, {1}}, {Graph::kImages});
  x = g.add("logits", Convolution{.channels = 2, .kernel = 3}, {x});
  x = g.add("images.scaled", Relu{}, {x});
  x = g.add("labels", Activation{.function = Activation::Function::linear, .alpha = 2}, {x});
  const Value learned = g.add("probabilities", Learned{{2, 1, 1}, Role::weight, ""}, {});
  x = g.add("scaled", Arithmetic{Arithmetic::Operator::product}, {x, learned});
  x = g.add("dense", Dense{3}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  const onnx::ModelProto model = translated(g);
  CHECK(model.graph().input(0).name() == "images");
  CHECK(model.graph().output(0).name() == "logits");
  CHECK(model.graph().output(1).name() == "probabilities");
  CHECK(node_named(model, "logits_2").input(1) == "logits.weight");
  CHECK(node_named(model, "images.scaled").input(0) == "logits_2");
  CHECK(node_named(model, "images.scaled_2").op_type() == "Mul");
  CHECK(node_named(model, "scaled").input(0) == "labels");
  CHECK(node_named(model, "scaled").input(1) == "probabilities_2");
}

TEST_CASE("parameters are exported to ONNX unchanged", "[onnx]") {
  std::map<std::string, std::vector<float>> given;
  const auto values = [&given](const std::string& name, const Shape& shape) {
    return std::span<const float>(given[name] = test::random_values(elements(shape), given.size()));
  };
  const onnx::ModelProto model = translated(default_graph("resnet20", 8), values);
  CHECK(given.size() == 21 * (1 + 4) + 2);  // 21 convolutions with their batch norms, and a dense layer
  for (const auto& [name, floats_given] : given) CHECK(floats(initializer(model, name)) == floats_given);
  CHECK(model.metadata_props_size() == 1);
}

TEST_CASE("adaptive average pools are exported to ONNX as matrix products", "[onnx]") {
  Graph g({5, 2, 1});
  Value x = g.add("input", ImageInput{{0}, {1}}, {Graph::kImages});
  x = g.add("parts", AdaptiveAveragePool{{2, 3}}, {x});
  x = g.add("dense", Dense{2}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  const onnx::ModelProto model = translated(g);
  const float third = 1.0f / 3;
  CHECK(floats(constant(model, "parts.of_rows")) ==
        std::vector<float>{third, third, third, 0, 0, 0, 0, third, third, third});
  CHECK(floats(constant(model, "parts.of_columns")) == std::vector<float>{1, 0.5f, 0, 0, 0.5f, 1});
}

TEST_CASE("attention is exported to ONNX as products of matrices, and read as one layer", "[onnx]") {
  const bool causal = GENERATE(false, true);
  Graph g({6, 4, 1});
  Value x = g.add("input", ImageInput{{0}, {1}}, {Graph::kImages});
  x = g.add("tokens", Reshape{{Reshape::kInferred, 6, 4}}, {x});
  x = g.add("attention.in_proj_", Linear{24}, {x});
  x = g.add("attention", Attention{2, causal}, {x});
  x = g.add("attention.out_proj", Linear{5}, {x});
  x = g.add("dense", Dense{2}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  const onnx::ModelProto model = translated(g);
  CHECK(floats(constant(model, "attention.scale")) == std::vector<float>{0.5f});
  CHECK(operators(model).at("MatMul") == 4);
  if (causal) CHECK(floats(constant(model, "attention.mask"))[1] == -std::numeric_limits<float>::infinity());
  const OnnxFile file = OnnxFile::parse(model.SerializeAsString(), "net.onnx");
  const ImportedNetwork network = read_network(file, exported_task(file));
  std::vector<std::string> found;
  for (const Node& node : network.graph.nodes()) {
    found.emplace_back(name(node.operation));
    const auto* attention = std::get_if<Attention>(&node.operation);
    if (attention == nullptr) continue;
    CHECK(attention->heads == 2);
    CHECK(attention->causal == causal);
  }
  CHECK(found == std::vector<std::string>{"image input", "reshape", "linear", "attention", "linear", "reshape", "dense",
                                          "softmax cross-entropy"});
}

TEST_CASE("root mean square normalization is exported to ONNX in parts, and read as one layer", "[onnx]") {
  const bool shift = GENERATE(false, true);
  Graph g({6, 4, 1});
  Value x = g.add("input", ImageInput{{0}, {1}}, {Graph::kImages});
  x = g.add("norm", LayerNorm{.axis = 3, .epsilon = 1e-3f, .shift = shift, .centred = false}, {x});
  x = g.add("dense", Dense{2}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  const OnnxFile file = OnnxFile::parse(translated(g).SerializeAsString(), "net.onnx");
  const ImportedNetwork network = read_network(file, exported_task(file));
  const auto& norm = std::get<LayerNorm>(network.graph.nodes()[1].operation);
  CHECK(norm.axis == 3);
  CHECK(norm.epsilon == 1e-3f);
  CHECK(norm.shift == shift);
  CHECK(!norm.centred);
  CHECK(network.graph.nodes()[1].name == "norm");
}

TEST_CASE("resized images are exported to ONNX by their sizes or their scales", "[onnx]") {
  Graph g({5, 7, 1});
  Value x = g.add("input", ImageInput{{0}, {1}}, {Graph::kImages});
  x = g.add("sized", Resize{{11, 3}, true, Resize::Coordinates::pytorch_half_pixel}, {x});
  x = g.add("scaled", Resize{{18, 3}, false, Resize::Coordinates::asymmetric, Resize::Rounding::ceil, 1.7f, 1.25f},
            {x});
  x = g.add("dense", Dense{2}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  const onnx::ModelProto model = translated(g);
  const onnx::NodeProto &sized = node_named(model, "sized"), &scaled = node_named(model, "scaled");
  CHECK(sized.input(3) == "sized.sizes");
  CHECK(text(sized, "mode") == "linear");
  CHECK(text(sized, "coordinate_transformation_mode") == "pytorch_half_pixel");
  CHECK(floats(constant(model, scaled.input(2))) == std::vector<float>{1, 1, 1.7f, 1.25f});
  CHECK(text(scaled, "mode") == "nearest");
  CHECK(text(scaled, "coordinate_transformation_mode") == "asymmetric");
  CHECK(text(scaled, "nearest_mode") == "ceil");
}

TEST_CASE("shapes inferred by ONNX match ours for every model", "[onnx]") {
  struct Tried {
    const char* model;
    std::size_t side;
    std::size_t nameless;  // nodes omitted in ONNX, and the loss
  };
  for (const Tried& tried :
       {Tried{"mlp", 28, 1}, Tried{"lenet", 28, 1}, Tried{"cnn", 28, 1}, Tried{"resnet18", 40, 1},
        Tried{"inception_v3", 75, 3}, Tried{"densenet121", 29, 2}, Tried{"mobilenet_v3_large", 33, 2}}) {
    CAPTURE(tried.model);
    const Graph graph = default_graph(tried.model, tried.side);
    CHECK(check_shapes(graph, translated(graph)) == graph.nodes().size() - tried.nameless);
  }
}

TEST_CASE("a fused graph is exported to the same ONNX model", "[onnx]") {
  for (const char* model : {"lenet", "resnet20"}) {
    CAPTURE(model);
    const Graph graph = default_graph(model, 32);
    CHECK(operators(translated(fuse(graph))) == operators(translated(graph)));
  }
}

TEST_CASE("a network larger than 2 GiB is refused before its parameters are read", "[onnx]") {
  constexpr std::size_t kWide = std::size_t{1} << 15;
  Graph g({1, 1, 1});
  Value x = g.add("input", ImageInput{{0}, {1}}, {Graph::kImages});
  for (const char* name : {"dense1", "dense2"}) x = g.add(name, Dense{kWide}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  const auto error = test::error_of([&] {
    to_onnx("wide", g,
            [](const std::string& name, const Shape&) -> std::span<const float> {
              FAIL(name << " was asked for");
              throw;
            },
            {});
  });
  CHECK_THAT(error, Contains("wide has 4 GiB of parameters") && Contains("2 GiB"));
}

}  // namespace annulus
