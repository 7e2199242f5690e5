#include "src/onnx/read.h"

#include <google/protobuf/unknown_field_set.h>

#include <catch2/catch.hpp>
#include <ctime>
#include <limits>

#include "models/graph/graph.h"
#include "tests/unit/error_text.h"
#include "tests/unit/onnx_model.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using test::convolved;
using test::error_of;
using test::Names;
using test::OnnxModel;
using test::set_image;
using test::Wholes;

// That this process has used: unlike the time that has passed, it does not depend on other processes.
double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

using Values = std::vector<float>;

// Every layer but the loss: its name, operation, and output for one image.
Names layers(const ImportedNetwork& network) {
  Names all;
  const Graph& graph = network.graph;
  for (std::size_t i = 0; i + 1 < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    all.push_back(
        fmt::format("{}: {} {}", node.name, name(node.operation), to_string(graph.shape(Graph::output(i), 1))));
  }
  return all;
}

Names parameters_of(const ImportedNetwork& network) {
  Names all;
  for (const auto& [name, values] : network.values) all.push_back(name);
  return all;
}

// The layers between convolved() and classify().
Names pattern(OnnxModel model, const std::string& last, std::int64_t channels = 4) {
  Names all = layers(model.classify(last, channels).read());
  REQUIRE(all.size() >= 5);
  CHECK(all[0] == "input: image input 1x2x4x4");
  CHECK(all[1] == "conv: convolution 1x4x4x4");
  CHECK(all.back() == "head: dense 1x3");
  return {all.begin() + 2, all.end() - 3};
}

template <class Kind>
std::ptrdiff_t count(const ImportedNetwork& network) {
  return std::ranges::count_if(network.graph.nodes(),
                               [](const Node& node) { return std::holds_alternative<Kind>(node.operation); });
}

template <class Kind>
const Kind& only(const ImportedNetwork& network) {
  for (const Node& node : network.graph.nodes())
    if (const auto* found = std::get_if<Kind>(&node.operation)) return *found;
  FAIL("the network has no such layer");
  throw;
}

TEST_CASE("Convolutions and dense layers of ONNX files keep their names and values") {
  OnnxModel model({-1, 1, 4, 4});
  model.parameter("body.0.weight", {2, 1, 3, 3}).parameter("body.0.bias", {2}).parameter("head.bias", {3});
  model.parameter("head.weight", {2, 3});
  model.node("Conv", {"x", "body.0.weight", "body.0.bias"}, {"c"},
             {{"strides", Wholes{1, 1}}, {"pads", Wholes{1, 0, 1, 0}}});
  model.node("Relu", {"c"}, {"r"}).node("GlobalAveragePool", {"r"}, {"p"}).node("Flatten", {"p"}, {"f"});
  SECTION("Gemm") {
    model.node("Gemm", {"f", "head.weight", "head.bias"}, {"y"});
  }
  SECTION("MatMul and Add") {
    model.node("MatMul", {"f", "head.weight"}, {"product"}).node("Add", {"head.bias", "product"}, {"y"});
  }
  const ImportedNetwork network = model.read();
  CHECK(layers(network) == Names{"input: image input 1x1x4x4", "body.0: convolution 1x2x4x2", "n_r: relu 1x2x4x2",
                                 "n_p: adaptive average pool 1x2x1x1", "n_f: reshape 1x2", "head: linear 1x3"});
  CHECK(parameters_of(network) == Names{"body.0.bias", "body.0.weight", "head.bias", "head.weight"});
  CHECK(network.values.at("head.weight") == std::vector<float>{0, 3, 1, 4, 2, 5});  // {units, features}
  CHECK(network.values.at("head.bias") == std::vector<float>{0, 1, 2});
  CHECK(network.values.at("body.0.bias") == std::vector<float>{0, 1});
  CHECK(network.notes.empty());
}

TEST_CASE("A product with weights for every pixel's features is a linear layer") {
  OnnxModel model = convolved();
  model.parameter("fc.weight", {4, 5}).parameter("fc.bias", {5});
  model.node("Transpose", {"c"}, {"t"}, {{"perm", Wholes{0, 2, 3, 1}}});
  model.node("MatMul", {"t", "fc.weight"}, {"m"}).node("Add", {"m", "fc.bias"}, {"a"});
  model.node("Transpose", {"a"}, {"images"}, {{"perm", Wholes{0, 3, 1, 2}}});
  CHECK(pattern(model, "images", 5) ==
        Names{"n_t: transpose 1x4x4x4", "fc: linear 1x4x4x5", "n_images: transpose 1x5x4x4"});
}

TEST_CASE("Activations that exporters write as several nodes are read as one layer") {
  OnnxModel model = convolved();
  const auto expect = [&](const std::string& operation) {
    CHECK(pattern(model, "a") == Names{"n_a: " + operation + " 1x4x4x4"});
  };
  SECTION("SiLU") {
    model.node("Sigmoid", {"c"}, {"gate"}).node("Mul", {"gate", "c"}, {"a"});
    expect("silu");
  }
  SECTION("Mish") {
    model.node("Softplus", {"c"}, {"s"}).node("Tanh", {"s"}, {"gate"}).node("Mul", {"c", "gate"}, {"a"});
    expect("mish");
  }
  SECTION("GELU, as PyTorch's exporter writes it") {
    model.number("root", 1.41421356f).number("one", 1).number("half", 0.5f);
    model.node("Div", {"c", "root"}, {"d"}).node("Erf", {"d"}, {"e"}).node("Add", {"e", "one"}, {"plus"});
    model.node("Mul", {"c", "plus"}, {"m"}).node("Mul", {"m", "half"}, {"a"});
    CHECK(pattern(model, "a") == Names{"n_m: gelu 1x4x4x4"});
  }
  SECTION("GELU with another order of factors") {
    model.number("scale", 0.70710678f).number("one", 1).number("half", 0.5f);
    model.node("Mul", {"scale", "c"}, {"d"}).node("Erf", {"d"}, {"e"}).node("Add", {"one", "e"}, {"plus"});
    model.node("Mul", {"half", "c"}, {"h"}).node("Mul", {"plus", "h"}, {"a"});
    expect("gelu");
  }
  SECTION("GELU of a shifted value") {
    model.number("shift", 0.5f).number("root", 1.41421356f).number("one", 1).number("half", 0.5f);
    model.node("Add", {"c", "shift"}, {"s"}).node("Div", {"s", "root"}, {"d"}).node("Erf", {"d"}, {"e"});
    model.node("Add", {"e", "one"}, {"plus"}).node("Mul", {"s", "plus"}, {"m"}).node("Mul", {"m", "half"}, {"a"});
    CHECK(pattern(model, "a") == Names{"n_m: linear function 1x4x4x4", "n_m_2: gelu 1x4x4x4"});
    const auto line = only<Activation>(model.classify("a", 4).read());
    CHECK(line.alpha == 1);
    CHECK(line.beta == Approx(0.5));
  }
  SECTION("the error function of another value") {
    model.number("shift", 0.5f).number("root", 1.41421356f).number("one", 1);
    model.node("Add", {"c", "shift"}, {"s"}).node("Div", {"c", "root"}, {"d"}).node("Erf", {"d"}, {"e"});
    model.node("Add", {"e", "one"}, {"plus"}).node("Mul", {"s", "plus"}, {"a"}).classify("a", 4);
    CHECK(model.error() == "net.onnx: node n_e: Erf is supported only within GELU");
  }
  SECTION("GELU by the hyperbolic tangent, as PyTorch's older exporter writes it") {
    model.number("three", 3).number("c3", 0.044715f).number("root", 0.79788456f).number("one", 1).number("half", 0.5f);
    model.node("Mul", {"c", "half"}, {"h"}).node("Pow", {"c", "three"}, {"cube"}).node("Mul", {"cube", "c3"}, {"m"});
    model.node("Add", {"c", "m"}, {"s"}).node("Mul", {"s", "root"}, {"t"}).node("Tanh", {"t"}, {"tanh"});
    model.node("Add", {"tanh", "one"}, {"plus"}).node("Mul", {"h", "plus"}, {"a"});
    expect("gelu (tanh)");
  }
  SECTION("GELU by the hyperbolic tangent, as we write it") {
    model.number("c3", 0.035677408f).number("root", 0.79788456f).number("one", 1).number("half", 0.5f);
    model.node("Mul", {"c", "c"}, {"square"}).node("Mul", {"square", "c3"}, {"m"}).node("Add", {"m", "root"}, {"s"});
    model.node("Mul", {"c", "s"}, {"t"}).node("Tanh", {"t"}, {"tanh"}).node("Add", {"tanh", "one"}, {"plus"});
    model.node("Mul", {"c", "plus"}, {"twice"}).node("Mul", {"twice", "half"}, {"a"});
    CHECK(pattern(model, "a") == Names{"n_twice: gelu (tanh) 1x4x4x4"});
  }
  SECTION("another polynomial within the hyperbolic tangent") {
    model.number("c3", 0.05f).number("root", 0.79788456f).number("one", 1);
    model.node("Mul", {"c", "c"}, {"square"}).node("Mul", {"square", "c3"}, {"m"}).node("Add", {"m", "root"}, {"s"});
    model.node("Mul", {"c", "s"}, {"t"}).node("Tanh", {"t"}, {"tanh"}).node("Add", {"tanh", "one"}, {"plus"});
    model.node("Mul", {"c", "plus"}, {"a"});
    CHECK(pattern(model, "a").back() == "n_a: product 1x4x4x4");
  }
  SECTION("Hard swish by its parts") {
    model.node("HardSigmoid", {"c"}, {"gate"}, {{"alpha", 1.0f / 6}}).node("Mul", {"c", "gate"}, {"a"});
    expect("hard swish");
  }
  SECTION("HardSwish") {
    model.node("HardSwish", {"c"}, {"a"});
    expect("hard swish");
  }
  SECTION("ReLU6") {
    model.number("zero", 0).number("six", 6).node("Clip", {"c", "zero", "six"}, {"a"});
    expect("clip");
    const auto clip = only<Activation>(model.classify("a", 4).read());
    CHECK(clip.alpha == 0);
    CHECK(clip.beta == 6);
  }
  SECTION("A scale and a shift") {
    model.number("two", 2).number("three", 3).node("Mul", {"c", "two"}, {"m"}).node("Sub", {"three", "m"}, {"a"});
    expect("linear function");
    const auto line = only<Activation>(model.classify("a", 4).read());
    CHECK(line.alpha == -2);
    CHECK(line.beta == 3);
  }
}

TEST_CASE("Means over the pixels are adaptive pools") {
  OnnxModel model = convolved();
  model.parameter("head.weight", {3, 4});
  SECTION("without the pixels' dimensions") {
    model.node("ReduceMean", {"c"}, {"m"}, {{"axes", Wholes{-1, 2}}, {"keepdims", 0}});
  }
  SECTION("with them") {
    model.node("ReduceMean", {"c"}, {"k"}, {{"axes", Wholes{2, 3}}}).tensor<std::int64_t>("axes", {2}, {2, 3});
    model.node("Squeeze", {"k", "axes"}, {"m"});
  }
  model.node("Gemm", {"m", "head.weight"}, {"y"}, {{"transB", 1}});
  const Names all = layers(model.read());
  REQUIRE(all.size() == 5);
  CHECK(all[2].ends_with(": adaptive average pool 1x4x1x1"));
  CHECK(all[3].ends_with(": reshape 1x4"));
  CHECK(all[4] == "head: dense 1x3");
}

TEST_CASE("Squeeze-and-excitation is read from ONNX files") {
  OnnxModel model = convolved();
  model.parameter("se.fc1.weight", {2, 4, 1, 1}).parameter("se.fc2.weight", {4, 2, 1, 1}).parameter("se.fc2.bias", {4});
  model.node("GlobalAveragePool", {"c"}, {"p"}).node("Conv", {"p", "se.fc1.weight"}, {"s"}).node("Relu", {"s"}, {"r"});
  model.node("Conv", {"r", "se.fc2.weight", "se.fc2.bias"}, {"e"}).node("Sigmoid", {"e"}, {"gate"});
  model.node("Mul", {"gate", "c"}, {"a"});
  CHECK(pattern(model, "a") == Names{"n_p: adaptive average pool 1x4x1x1", "se.fc1: convolution 1x2x1x1",
                                     "n_r: relu 1x2x1x1", "se.fc2: convolution 1x4x1x1", "n_gate: sigmoid 1x4x1x1",
                                     "n_a: product 1x4x4x4"});
}

TEST_CASE("Group normalization of the older exporter is one layer, even if it reshapes the scale itself") {
  OnnxModel model = convolved();
  model.tensor<float>("onnx::ones", {2}, {1, 1}).tensor<float>("onnx::zeros", {2}, {0, 0});
  model.parameter("norm.weight", {4}).parameter("norm.bias", {4});
  model.tensor<std::int64_t>("to", {3}, {0, 2, -1}).tensor<std::int64_t>("back", {4}, {-1, 4, 4, 4});
  model.tensor<std::int64_t>("axes", {2}, {1, 2});
  model.node("Reshape", {"c", "to"}, {"groups"})
      .node("InstanceNormalization", {"groups", "onnx::ones", "onnx::zeros"}, {"norm"});
  model.node("Reshape", {"norm", "back"}, {"images"}).node("Unsqueeze", {"norm.weight", "axes"}, {"scale"});
  model.node("Mul", {"images", "scale"}, {"scaled"}).node("Unsqueeze", {"norm.bias", "axes"}, {"shift"});
  model.node("Add", {"scaled", "shift"}, {"a"});
  CHECK(pattern(model, "a") == Names{"norm: group norm 1x4x4x4"});
  CHECK(only<GroupNorm>(model.classify("a", 4).read()).groups == 2);
}

TEST_CASE("Normalization of groups of the older exporter that is not group normalization keeps its parts") {
  const bool by_batch = GENERATE(true, false);
  OnnxModel model({by_batch ? 2 : -1, 2, 4, 4});
  model.parameter("conv.weight", {4, 2, 1, 1}).node("Conv", {"x", "conv.weight"}, {"c"});
  model.tensor<float>("onnx::ones", {by_batch ? 4 : 2}, by_batch ? Values{1, 1, 1, 1} : Values{1, 1});
  model.tensor<float>("onnx::zeros", {by_batch ? 4 : 2}, Values(by_batch ? 4 : 2));
  model.tensor<std::int64_t>("to", {3}, by_batch ? Wholes{1, 4, -1} : Wholes{0, 2, -1});  // groups of both images
  model.tensor<std::int64_t>("back", {4}, {by_batch ? 2 : -1, 4, 4, 4});
  const Wholes columns{4}, channels{4, 1, 1};  // as many of both
  model.parameter("scale", by_batch ? channels : columns).parameter("shift", by_batch ? channels : columns);
  model.node("Reshape", {"c", "to"}, {"groups"})
      .node("InstanceNormalization", {"groups", "onnx::ones", "onnx::zeros"}, {"norm"});
  model.node("Reshape", {"norm", "back"}, {"images"}).node("Mul", {"images", "scale"}, {"scaled"});
  model.node("Add", {"scaled", "shift"}, {"a"}).classify("a", 4);
  const Names found = layers(model.read());
  CHECK(std::ranges::count_if(found, [](const std::string& layer) { return layer.find("group norm") != layer.npos; }) ==
        0);
  CHECK(std::ranges::count_if(found, [](const std::string& layer) { return layer.find("mean") != layer.npos; }) == 2);
}

TEST_CASE("An element that is repeated is an operand, one of several is not") {
  const std::int64_t channels = GENERATE(1, 4);
  OnnxModel model = convolved();
  model.parameter("gate.weight", {channels, 2, 1, 1}).node("Conv", {"x", "gate.weight"}, {"g"});
  model.tensor<std::int64_t>("first", {4}, {0, 0, 0, 0}).node("Gather", {"g", "first"}, {"r"}, {{"axis", 1}});
  model.node("Mul", {"c", "r"}, {"a"}).classify("a", 4);
  const ImportedNetwork network = model.read();
  const auto gathers = std::ranges::count_if(
      network.graph.nodes(), [](const Node& node) { return std::holds_alternative<Gather>(node.operation); });
  CHECK(gathers == (channels == 1 ? 0 : 1));
}

TEST_CASE("Slopes of PReLU are one for each channel") {
  const auto slopes = [](const Wholes& shape) {
    return convolved().parameter("slopes", shape).node("PRelu", {"c", "slopes"}, {"a"});
  };
  CHECK(pattern(slopes({4, 1, 1}), "a") == Names{"slopes: prelu 1x4x4x4"});
  CHECK(pattern(slopes({1, 4, 1, 1}), "a") == Names{"slopes: prelu 1x4x4x4"});
  const Names columns{"node n_a (PRelu): its slopes of 4 are not one for each channel of its input of 1x4x4x4"};
  CHECK(slopes({4}).classify("a", 4).problems() == columns);
}

TEST_CASE("The last softmax or sigmoid is part of the loss, if it is that loss's") {
  const auto last = [](const std::string& op, LabelKind labels, Loss loss) {
    OnnxModel model = convolved().classify("c", 4);
    *model.graph().mutable_node(model.graph().node_size() - 1)->mutable_output(0) = "logits";
    model.node(op, {"logits"}, {"y"});
    const OnnxFile file = model.file();
    Task task = exported_task(file);
    task.labels = labels;
    task.loss = loss;
    return layers(read_network(file, task)).back();
  };
  using enum LabelKind;
  CHECK(last("Softmax", one_class, Loss::softmax) == "head: dense 1x3");
  CHECK(last("LogSoftmax", one_class, Loss::softmax) == "head: dense 1x3");
  CHECK(last("Sigmoid", one_class, Loss::softmax) == "n_y: sigmoid 1x3");
  CHECK(last("Softmax", several_classes, Loss::binary) == "n_y: softmax 1x3");
  CHECK(last("Sigmoid", several_classes, Loss::binary) == "head: dense 1x3");
  CHECK(last("Sigmoid", values, Loss::mse) == "n_y: sigmoid 1x3");
}

TEST_CASE("Fractional powers are read from ONNX files") {
  OnnxModel model = convolved();
  const auto raised = [&](float exponent) {
    return OnnxModel(model).number("exponent", exponent).node("Pow", {"c", "exponent"}, {"a"});
  };
  CHECK(pattern(raised(0.75f), "a") ==
        Names{"n_a: logarithm 1x4x4x4", "n_a_2: linear function 1x4x4x4", "n_a_3: exponential 1x4x4x4"});
  CHECK(pattern(raised(-0.5f), "a") == Names{"n_a: square root 1x4x4x4", "n_a_2: reciprocal 1x4x4x4"});
  const Names expected{"node n_a (Pow): only the powers -1, 1, 2 and 3, and fractions below 1, are supported"};
  CHECK(raised(1.5f).classify("a", 4).problems() == expected);
}

TEST_CASE("Means across neighbouring channels are read as windows of images") {
  OnnxModel model = convolved();
  model.tensor<std::int64_t>("axis", {1}, {1});
  model.node("Unsqueeze", {"c", "axis"}, {"volume"});
  SECTION("") {
    model.node("AveragePool", {"volume"}, {"means"},
               {{"kernel_shape", Wholes{3, 1, 1}}, {"auto_pad", std::string("NOTSET")}});
    model.node("Squeeze", {"means", "axis"}, {"a"});
    CHECK(pattern(model, "a", 2) ==
          Names{"n_means: reshape 1x1x4x16", "n_means_2: average pool 1x1x2x16", "n_a: reshape 1x2x4x4"});
  }
  SECTION("and no others") {
    const auto problem = [&](const Wholes& kernel, const Wholes& pads) {
      OnnxModel other = model;
      other.node("AveragePool", {"volume"}, {"means"}, {{"kernel_shape", kernel}, {"pads", pads}});
      return other.node("Squeeze", {"means", "axis"}, {"a"}).classify("a", 4).problems().at(0);
    };
    CHECK(problem({3, 3, 1}, Wholes(6)).ends_with("is not supported: use two-dimensional images"));
    CHECK(problem({3, 1, 1}, {1, 0, 0, 1, 0, 0}).ends_with("use two-dimensional images"));
    CHECK(problem({5, 1, 1}, Wholes(6)).ends_with("its kernel_shape of 5 exceeds the depth of 4"));
  }
}

TEST_CASE("A channel shuffle is read for any batch") {
  OnnxModel model = convolved();
  model.tensor<std::int64_t>("first", {1}, {0}).tensor<std::int64_t>("zero", {1}, {0});
  model.tensor<std::int64_t>("split", {4}, {2, 2, 4, 4}).tensor<std::int64_t>("merged", {3}, {-1, 4, 4});
  model.node("Shape", {"c"}, {"shape"}).node("Gather", {"shape", "first"}, {"batch"});
  model.node("Concat", {"batch", "split"}, {"to"}, {{"axis", 0}}).node("Reshape", {"c", "to"}, {"groups"});
  model.node("Transpose", {"groups"}, {"mixed"}, {{"perm", Wholes{0, 2, 1, 3, 4}}});
  model.node("Concat", {"batch", "merged"}, {"back"}, {{"axis", 0}}).node("Reshape", {"mixed", "back"}, {"a"});
  CHECK(pattern(model, "a") ==
        Names{"n_groups: reshape 1x2x2x4x4", "n_mixed: transpose 1x2x2x4x4", "n_a: reshape 1x4x4x4"});
  CHECK(model.classify("a", 4).read().graph.shape(Graph::output(4), 7) == Shape{7, 4, 4, 4});
}

TEST_CASE("A class token is repeated for every image of a batch") {
  OnnxModel model = convolved();
  model.parameter("class_token", {1, 1, 4}).parameter("head.weight", {3, 4});
  model.tensor<std::int64_t>("to", {3}, {0, 4, 16}).tensor<std::int64_t>("rest", {2}, {1, 4});
  model.node("Reshape", {"c", "to"}, {"r"}).node("Transpose", {"r"}, {"tokens"}, {{"perm", Wholes{0, 2, 1}}});
  model.node("Shape", {"c"}, {"batch"}, {{"end", 1}}).node("Concat", {"batch", "rest"}, {"size"}, {{"axis", 0}});
  model.node("Expand", {"class_token", "size"}, {"class"}).node("Concat", {"class", "tokens"}, {"all"}, {{"axis", 1}});
  model.node("Gather", {"all", "first"}, {"token"}, {{"axis", 1}});
  model.tensor<std::int64_t>("first", {}, {0}).node("Gemm", {"token", "head.weight"}, {"y"}, {{"transB", 1}});
  const ImportedNetwork network = model.read();
  CHECK(layers(network) == Names{"input: image input 1x2x4x4", "conv: convolution 1x4x4x4", "n_r: reshape 1x4x16",
                                 "n_tokens: transpose 1x16x4", "class_token: learned 1x1x4", "n_class: expand 1x1x4",
                                 "n_all: concat 1x17x4", "n_token: slice 1x1x4", "n_token_2: reshape 1x4",
                                 "head: dense 1x3"});
  CHECK(network.graph.shape(Graph::output(6), 5) == Shape{5, 17, 4});
  CHECK(network.values.at("class_token") == std::vector<float>{0, 1, 2, 3});
}

TEST_CASE("A layer scale is a product with a parameter") {
  OnnxModel model = convolved();
  model.parameter("block.layer_scale", {4, 1, 1}).node("Mul", {"block.layer_scale", "c"}, {"scaled"});
  model.node("Add", {"c", "scaled"}, {"a"});
  CHECK(pattern(model, "a") ==
        Names{"block.layer_scale: learned 4x1x1", "n_scaled: product 1x4x4x4", "n_a: add 1x4x4x4"});
}

TEST_CASE("Batch normalization is read in the form of training and of inference") {
  OnnxModel model = convolved();
  for (const char* name : {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"})
    model.parameter(name, {4});
  const Names inputs{"c", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"};
  SECTION("inference") {
    model.node("BatchNormalization", inputs, {"a"}, {{"epsilon", 1e-3f}, {"momentum", 0.75f}});
  }
  SECTION("training") {
    model.node("BatchNormalization", inputs, {"a", "mean", "var"},
               {{"epsilon", 1e-3f}, {"momentum", 0.75f}, {"training_mode", 1}});
  }
  CHECK(pattern(model, "a") == Names{"norm: batch norm 1x4x4x4"});
  const ImportedNetwork network = model.classify("a", 4).read();
  CHECK(only<BatchNorm>(network).epsilon == 1e-3f);
  CHECK(only<BatchNorm>(network).momentum == 0.25f);
  CHECK(network.values.at("norm.running_var") == std::vector<float>{0, 1, 2, 3});
}

TEST_CASE("Layer normalization by its parts is one layer") {
  OnnxModel model = convolved();
  model.parameter("norm.weight", {4}).parameter("norm.bias", {4}).number("two", 2).number("epsilon", 1e-3f);
  model.node("ReduceMean", {"c"}, {"mean"}, {{"axes", Wholes{-1}}}).node("Sub", {"c", "mean"}, {"d"});
  model.node("Pow", {"d", "two"}, {"square"}).node("ReduceMean", {"square"}, {"var"}, {{"axes", Wholes{-1}}});
  model.node("Add", {"var", "epsilon"}, {"plus"}).node("Sqrt", {"plus"}, {"root"}).node("Div", {"d", "root"}, {"q"});
  model.node("Mul", {"q", "norm.weight"}, {"m"});
  SECTION("with a shift") {
    model.node("Add", {"m", "norm.bias"}, {"a"});
    CHECK(pattern(model, "a") == Names{"norm: layer norm 1x4x4x4"});
    const ImportedNetwork network = model.classify("a", 4).read();
    CHECK(only<LayerNorm>(network).shift);
    CHECK(only<LayerNorm>(network).axis == 3);
    CHECK(only<LayerNorm>(network).epsilon == 1e-3f);
    CHECK(network.values.at("norm.bias") == std::vector<float>{0, 1, 2, 3});
  }
  SECTION("without a shift") {
    model.node("Relu", {"m"}, {"a"});
    CHECK(pattern(model, "a") == Names{"norm: layer norm 1x4x4x4", "n_a: relu 1x4x4x4"});
  }
  SECTION("whose values before the shift have another reader") {
    model.node("Add", {"m", "norm.bias"}, {"b"}).node("Add", {"m", "b"}, {"a"});
    CHECK(pattern(model, "a") ==
          Names{"norm: layer norm 1x4x4x4", "norm.bias: learned 4", "n_b: sum 1x4x4x4", "n_a: add 1x4x4x4"});
  }
}

// As PyTorch's newer exporter writes nn.RMSNorm, and Hugging Face's LlamaRMSNorm.
TEST_CASE("Root mean square normalization by its parts is one layer") {
  OnnxModel model = convolved();
  model.parameter("norm.weight", {4}).number("two", 2).number("epsilon", 1e-3f);
  model.node("Pow", {"c", "two"}, {"square"}).node("ReduceMean", {"square"}, {"mean"}, {{"axes", Wholes{-1}}});
  model.node("Add", {"mean", "epsilon"}, {"plus"}).node("Sqrt", {"plus"}, {"root"});
  model.node("Reciprocal", {"root"}, {"rsqrt"});
  bool found = true;
  SECTION("x times a reciprocal") {
    model.node("Mul", {"c", "rsqrt"}, {"q"});
  }
  SECTION("a reciprocal times x") {
    model.node("Mul", {"rsqrt", "c"}, {"q"});
  }
  SECTION("x divided by a root") {
    model.node("Div", {"c", "root"}, {"q"});
  }
  SECTION("a root divided by x") {
    model.node("Div", {"root", "c"}, {"q"});
    found = false;
  }
  SECTION("another value times a reciprocal") {
    model.node("Relu", {"c"}, {"d"}).node("Mul", {"d", "rsqrt"}, {"q"});
    found = false;
  }
  model.node("Mul", {"norm.weight", "q"}, {"a"});
  const Names made = pattern(model, "a");
  CHECK((made == Names{"norm: layer norm 1x4x4x4"}) == found);
  if (!found) return;
  const ImportedNetwork network = model.classify("a", 4).read();
  CHECK(!only<LayerNorm>(network).centred);
  CHECK(!only<LayerNorm>(network).shift);
  CHECK(only<LayerNorm>(network).epsilon == 1e-3f);
}

// As PyTorch's older exporter writes nn.MultiheadAttention: tokens before images, which are exchanged before and after.
TEST_CASE("Attention by its parts is one layer") {
  OnnxModel model({2, 1, 6, 4});
  const auto shape = [&](const std::string& name, const Wholes& extents) {
    model.tensor<std::int64_t>(name, {static_cast<std::int64_t>(extents.size())}, extents);
  };
  shape("tokens", {2, 6, 4});
  shape("packed", {6, 2, 3, 4});
  shape("heads", {6, 4, 2});
  shape("by_head", {2, 2, 6, 2});
  shape("rows", {12, 4});
  shape("exchanged", {6, 2, 4});
  model.parameter("in_proj.weight", {4, 12}).parameter("in_proj.bias", {12}).parameter("out_proj.weight", {4, 4});
  model.number("root", 0.8408964f);  // 2^-1/4, for the queries and for the keys
  model.node("Reshape", {"x", "tokens"}, {"t"}).node("Transpose", {"t"}, {"s"}, {{"perm", Wholes{1, 0, 2}}});
  model.node("MatMul", {"s", "in_proj.weight"}, {"m"}).node("Add", {"m", "in_proj.bias"}, {"p"});
  model.node("Reshape", {"p", "packed"}, {"p4"}).node("Transpose", {"p4"}, {"parts"}, {{"perm", Wholes{2, 0, 1, 3}}});
  const auto part = [&](const std::string& name, std::int64_t number) {
    model.tensor<std::int64_t>(name + "i", {}, {number});
    model.node("Gather", {"parts", name + "i"}, {name + "p"}, {{"axis", 0}});
    model.node("Reshape", {name + "p", "heads"}, {name + "h"});
    model.node("Transpose", {name + "h"}, {name + "t"}, {{"perm", Wholes{1, 0, 2}}});
    model.node("Reshape", {name + "t", "by_head"}, {name});
  };
  Names expected{"input: image input 1x1x6x4", "n_t: reshape 1x6x4", "in_proj: linear 1x6x12", "n_h: attention 1x6x4"};
  bool packed = true;
  SECTION("of queries, keys and values") {
    for (const auto& [name, number] : {std::pair{"q", 0}, {"k", 1}, {"v", 2}}) part(name, number);
  }
  SECTION("of values, keys and queries") {
    for (const auto& [name, number] : {std::pair{"q", 2}, {"k", 1}, {"v", 0}}) part(name, number);
    packed = false;
  }
  model.node("Transpose", {"k"}, {"turned"}, {{"perm", Wholes{0, 1, 3, 2}}});
  model.node("Mul", {"q", "root"}, {"qs"}).node("Mul", {"turned", "root"}, {"ks"}).node("MatMul", {"qs", "ks"}, {"a"});
  model.node("Softmax", {"a"}, {"w"}, {{"axis", -1}}).node("MatMul", {"w", "v"}, {"h"});
  model.node("Transpose", {"h"}, {"h2"}, {{"perm", Wholes{2, 0, 1, 3}}}).node("Reshape", {"h2", "rows"}, {"r"});
  model.node("MatMul", {"r", "out_proj.weight"}, {"o"}).node("Reshape", {"o", "exchanged"}, {"e"});
  model.node("Transpose", {"e"}, {"b"}, {{"perm", Wholes{1, 0, 2}}}).node("Flatten", {"b"}, {"y"});
  const ImportedNetwork network = model.read();
  const Names made = layers(network);
  CHECK(only<Attention>(network).heads == 2);
  CHECK(!only<Attention>(network).causal);
  REQUIRE(made.size() > expected.size());
  CHECK((Names(made.begin(), made.begin() + 4) == expected) == packed);
  CHECK(count<Concat>(network) == (packed ? 0 : 1));
}

// As PyTorch's newer exporter writes scaled_dot_product_attention: keys are transposed with the batch and the heads
// joined.
TEST_CASE("Attention of layers of their own is one layer") {
  OnnxModel model({-1, 1, 6, 4});
  const auto shape = [&](const std::string& name, const Wholes& extents) {
    model.tensor<std::int64_t>(name, {static_cast<std::int64_t>(extents.size())}, extents);
  };
  shape("tokens", {0, 6, 4});
  shape("heads", {0, 6, 2, 2});
  shape("joined", {-1, 6, 2});
  shape("by_head", {-1, 2, 2, 6});
  model.node("Reshape", {"x", "tokens"}, {"t"});
  for (const std::string& name : Names{"q", "k", "v"}) {
    model.parameter(name + "_proj.weight", {4, 4}).node("MatMul", {"t", name + "_proj.weight"}, {name + "m"});
    model.node("Reshape", {name + "m", "heads"}, {name + "h"});
    model.node("Transpose", {name + "h"}, {name}, {{"perm", Wholes{0, 2, 1, 3}}});
  }
  model.node("Reshape", {"k", "joined"}, {"k3"}).node("Transpose", {"k3"}, {"k3t"}, {{"perm", Wholes{0, 2, 1}}});
  model.node("Reshape", {"k3t", "by_head"}, {"turned"});
  bool causal = false, found = true;
  std::vector<float> mask(36, 0);
  float root = 0.8408964f;  // 2^-1/4, for the queries and for the keys
  SECTION("of all tokens") {}
  SECTION("causal") {
    causal = true;
  }
  SECTION("with another scale") {
    root = 0.5f;
  }
  SECTION("with another mask") {
    mask[1] = -1;
    found = false;
  }
  for (std::size_t i = 0; causal && i < 36; ++i)
    if (i % 6 > i / 6) mask[i] = std::numeric_limits<float>::lowest();
  const bool masked = causal || !found;
  model.tensor<float>("onnx::mask", {1, 1, 6, 6}, mask).number("root", root);
  model.node("Mul", {"q", "root"}, {"qs"}).node("Mul", {"turned", "root"}, {"ks"}).node("MatMul", {"qs", "ks"}, {"p"});
  if (masked) model.node("Add", {"p", "onnx::mask"}, {"a"});
  model.node("Softmax", {masked ? "a" : "p"}, {"w"}, {{"axis", -1}}).node("MatMul", {"w", "v"}, {"h"});
  model.node("Transpose", {"h"}, {"b"}, {{"perm", Wholes{0, 2, 1, 3}}}).node("Flatten", {"b"}, {"y"});
  const ImportedNetwork network = model.read();
  CHECK(count<MatrixProduct>(network) == (found ? 0 : 2));
  if (!found) return;
  CHECK(only<Attention>(network).heads == 2);
  CHECK(only<Attention>(network).causal == causal);
  CHECK(count<Concat>(network) == 1);
  CHECK(count<Transpose>(network) == 0);
  CHECK(count<Activation>(network) == (root == 0.5f ? 1 : 0));
}

TEST_CASE("The last layer is replaced if the data has another number of classes") {
  const OnnxFile file = convolved().classify("c", 4).file();
  Task task = exported_task(file);
  CHECK(task.classes == 3);
  CHECK(task.image.height == 4);
  CHECK(task.image.channels == 2);
  task.classes = 7;
  const ImportedNetwork network = read_network(file, task);
  CHECK(layers(network).back() == "head: dense 1x7");
  CHECK(network.notes == Names{"the last layer is replaced: it has 3 classes, the data 7"});
  CHECK(network.values.contains("conv.weight"));
  CHECK(!network.values.contains("head.weight"));
}

TEST_CASE("A last layer that cannot be replaced is an error") {
  OnnxModel model = convolved();
  model.number("one", 1).node("GlobalAveragePool", {"c"}, {"p"}).node("Flatten", {"p"}, {"f"});
  model.node("Exp", {"f"}, {"e"}).node("Concat", {"e", "f"}, {"y"}, {{"axis", 1}});
  const OnnxFile file = model.file();
  Task task = exported_task(file);
  task.classes = 9;
  CHECK(error_of([&] { read_network(file, task); }) ==
        "net.onnx: it has 8 classes, but the data 9, and its last layer cannot be replaced: export it with 9 classes");
}

TEST_CASE("The values of a network can be removed from its file") {
  const OnnxFile file = convolved().classify("c", 4).file();
  const ImportedNetwork network = read_network(file, exported_task(file));
  const OnnxFile stripped = OnnxFile::parse(without_parameters(file, network), "stripped");
  const ImportedNetwork again = read_network(stripped, exported_task(file));
  CHECK(again.graph.description() == network.graph.description());
  CHECK(again.values.empty());
}

TEST_CASE("Tensors that are trained and also read as constants keep their values without the others") {
  OnnxModel model = convolved();
  SECTION("combined with pixels") {
    model.parameter("p", {2, 1, 1}).node("Sub", {"x", "p"}, {"b"}).node("PRelu", {"b", "p"}, {"a"}).classify("a", 2);
  }
  SECTION("combined with pixels, transposed") {
    model.parameter("p", {4, 4}).node("Transpose", {"p"}, {"t"}).node("Mul", {"x", "t"}, {"b"});
    model.parameter("next.weight", {4, 2, 1, 1}).node("Conv", {"b", "next.weight"}, {"d"});
    model.node("Mul", {"d", "p"}, {"e"}).node("Add", {"c", "e"}, {"a"}).classify("a", 4);
  }
  SECTION("a factor with a name that was made up") {
    model.tensor<float>("onnx::Mul_3", {4, 1, 1}, {2, 2, 2, 2}).node("Mul", {"c", "onnx::Mul_3"}, {"d"});
    model.node("PRelu", {"d", "onnx::Mul_3"}, {"a"}).classify("a", 4);
  }
  SECTION("a bound") {
    model.tensor<float>("limit", {1}, {2}).node("PRelu", {"c", "limit"}, {"d"});
    model.node("Clip", {"d", "", "limit"}, {"a"}).classify("a", 4);
  }
  SECTION("an input of a dense layer") {
    model.parameter("p", {4, 4}).parameter("fc.weight", {4, 4}).node("MatMul", {"p", "fc.weight"}, {"d"});
    model.node("MatMul", {"d", "p"}, {"e"}).node("Mul", {"c", "e"}, {"a"}).classify("a", 4);
  }
  const OnnxFile file = model.file();
  const Task task = exported_task(file);
  const ImportedNetwork network = read_network(file, task);
  const OnnxFile stripped = OnnxFile::parse(without_parameters(file, network), "stripped");
  CHECK(read_network(stripped, task).graph.description() == network.graph.description());
  CHECK(read_network(stripped, task).values.size() < network.values.size());
}

TEST_CASE("Absolute values of whole numbers are constants") {
  OnnxModel model = convolved();
  model.tensor<std::int64_t>("negative", {4}, {-1, -4, 2, -8}).node("Abs", {"negative"}, {"to"});
  model.node("Reshape", {"c", "to"}, {"r"}).node("Relu", {"r"}, {"s"});
  model.tensor<std::int64_t>("back", {4}, {0, 4, 4, 4}).node("Reshape", {"s", "back"}, {"a"});
  model.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(0)->set_dim_value(
      1);
  CHECK(pattern(model, "a") == Names{"n_r: reshape 1x4x2x8", "n_s: relu 1x4x2x8", "n_a: reshape 1x4x4x4"});
}

TEST_CASE("Numbers that an operator needs may have any name") {
  OnnxModel model = convolved();
  SECTION("of a clip") {
    model.tensor<float>("low", {1}, {-1}).tensor<float>("high", {1}, {6}).node("Clip", {"c", "low", "high"}, {"a"});
    CHECK(pattern(model, "a") == Names{"n_a: clip 1x4x4x4"});
  }
  SECTION("of a power") {
    model.tensor<float>("exponent", {1}, {2}).node("Pow", {"c", "exponent"}, {"a"});
    CHECK(pattern(model, "a") == Names{"n_a: square 1x4x4x4"});
  }
  SECTION("of a pad") {
    model.tensor<std::int64_t>("sides", {8}, {0, 0, 1, 0, 0, 0, 0, 0}).tensor<float>("border", {1}, {3});
    model.node("Pad", {"c", "sides", "border"}, {"a"});
    CHECK(pattern(model, "a") == Names{"n_a: pad 1x4x5x4"});
    CHECK(only<Pad>(model.classify("a", 4).read()).value == 3);
  }
  SECTION("of a resize") {
    model.tensor<float>("factors", {4}, {1, 1, 2, 2});
    model.node("Resize", {"c", "", "factors"}, {"a"}, {{"mode", "linear"}});
    CHECK(pattern(model, "a") == Names{"n_a: resize 1x4x8x8"});
  }
  SECTION("of a choice") {
    model.tensor<std::int64_t>("mask", {4, 1, 1}, {1, 0, 1, 1}).tensor<float>("fill", {1}, {7});
    model.node("Where", {"mask", "c", "fill"}, {"a"});
    CHECK(pattern(model, "a").size() == 4);
  }
  SECTION("of dropout") {
    model.tensor<float>("rate", {1}, {0.25f}).tensor<std::int64_t>("training", {}, {1});
    model.node("Dropout", {"c", "rate", "training"}, {"a"});
    CHECK(pattern(model, "a") == Names{"n_a: dropout 1x4x4x4"});
    CHECK(only<Dropout>(model.classify("a", 4).read()).rate == 0.25f);
  }
  SECTION("must be one number") {
    model.parameter("low", {4, 1, 1}).node("Clip", {"c", "low"}, {"a"}).classify("a", 4);
    CHECK(model.problems() == Names{"node n_a (Clip): its input 1 must be one number"});
  }
}

TEST_CASE("Names of layers are unique, also those of parameters") {
  OnnxModel model = convolved();
  for (int i = 0; i < 3; ++i)
    model.node("Sigmoid", {i == 0 ? "c" : fmt::format("s{}", i - 1)}, {fmt::format("s{}", i)});
  for (onnx::NodeProto& node : *model.graph().mutable_node()) node.set_name("same/node");
  SECTION("of layers without parameters") {
    CHECK(pattern(model, "s2") == Names{"node: sigmoid 1x4x4x4", "node_2: sigmoid 1x4x4x4", "node_3: sigmoid 1x4x4x4"});
  }
  SECTION("of layers with the same tensor") {
    model.parameter("a.weight", {4, 1, 1})
        .node("Mul", {"s2", "a.weight"}, {"m"})
        .node("PRelu", {"m", "a.weight"}, {"p"});
    const ImportedNetwork network = model.classify("p", 4).read();
    CHECK(parameters_of(network) == Names{"a.weight", "conv.weight", "head.weight"});
    CHECK(network.notes.empty());
  }
}

// Bad files.

std::string parse_error(const std::string& bytes) {
  return error_of([&] { OnnxFile::parse(bytes, "net.onnx"); });
}

TEST_CASE("A file that is not an ONNX file, or a part of one, is an error") {
  const std::string damaged = "net.onnx: it is not an ONNX file, or it is damaged";
  CHECK(parse_error("no protobuf message") == damaged);
  CHECK(parse_error("") ==
        "net.onnx: its operators are of version 0, but at least 11 is needed: export it with opset_version=17");
  const std::string whole = convolved().classify("c", 4).bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    try {
      const OnnxFile file = OnnxFile::parse(std::string_view(whole).substr(0, size), "net.onnx");
      read_network(file, exported_task(file));
      FAIL("a file without its end was read");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).starts_with("net.onnx: "));
    }
  }
}

TEST_CASE("Errors of ONNX files name what does not fit") {
  OnnxModel model = convolved();
  SECTION("old operators") {
    model.proto.mutable_opset_import(0)->set_version(9);
    CHECK(model.error() ==
          "net.onnx: its operators are of version 9, but at least 11 is needed: export it with opset_version=17");
  }
  SECTION("new operators") {
    model.proto.mutable_opset_import(0)->set_version(24);
    CHECK(model.error() ==
          "net.onnx: its operators are of version 24, but at most 23 is supported: export it with opset_version=17");
  }
  SECTION("no output") {
    model.graph().clear_output();
    CHECK(model.error() == "net.onnx: it has no output");
  }
  SECTION("an output of its own") {
    model.number("y", 1);
    CHECK(model.error() == "net.onnx: its output y does not depend on the input");
  }
  SECTION("an output that is not one of classes") {
    model.node("Relu", {"c"}, {"y"});
    CHECK(model.error() ==
          "net.onnx: its first output is 1x4x4x4 for one image, but a classifier's is {batch, classes}");
  }
  SECTION("two inputs") {
    set_image(*model.graph().add_input(), "mask", {-1, 2, 4, 4});
    CHECK(
        model.error() ==
        "net.onnx: it has 2 inputs, but networks are supported that read images or tokens alone, or attention_mask and "
        "token_type_ids beside tokens: wrap the network in a module whose forward() takes one");
  }
  SECTION("an input of another type") {
    model.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::BOOL);
    CHECK(model.error() == "net.onnx: its input x is neither float32, as images are, nor int64, as tokens are");
  }
  SECTION("an undefined input") {
    model.node("Relu", {"nowhere"}, {"y"});
    CHECK(model.error() == "net.onnx: node n_y reads nowhere, which nothing computes");
  }
  SECTION("a cycle") {
    model.node("Add", {"c", "b"}, {"a"}).node("Relu", {"a"}, {"b"}).classify("b", 4);
    CHECK(model.error() ==
          "net.onnx: node n_a reads b, which is computed after it: the nodes are not in order or have a cycle");
  }
  SECTION("a name twice") {
    model.node("Relu", {"c"}, {"c"});
    CHECK(model.error() == "net.onnx: node n_c computes c, which exists already");
  }
  SECTION("a tensor twice") {
    model.parameter("conv.weight", {1});
    CHECK(model.error() == "net.onnx: a stored tensor computes conv.weight, which exists already");
  }
  SECTION("a name with control characters") {
    model.node("Relu", {"no\nwhere"}, {"y"});
    CHECK(model.error() == "net.onnx: node n_y reads no\\nwhere, which nothing computes");
  }
  SECTION("values of another type") {
    model.graph().mutable_initializer(0)->set_data_type(onnx::TensorProto::COMPLEX64);
    CHECK(model.error() == "net.onnx: conv.weight: tensors of type COMPLEX64 are not supported: use float32");
  }
  SECTION("fewer values than declared") {
    model.graph().mutable_initializer(0)->mutable_float_data()->RemoveLast();
    CHECK(model.error() == "net.onnx: conv.weight: it is 4x2x1x1, but the file has 7 values of it");
  }
  SECTION("a billion values that are missing") {
    model.graph().mutable_initializer(0)->set_dims(2, 125'000'000);
    CHECK(model.error() == "net.onnx: conv.weight: it is 4x2x125000000x1, but the file has 8 values of it");
  }
  SECTION("more values than fit in memory") {
    model.graph().mutable_initializer(0)->set_dims(2, std::int64_t{1} << 60);
    CHECK(model.error() == "net.onnx: conv.weight: it has too many elements");
  }
  SECTION("a negative extent") {
    model.graph().mutable_initializer(0)->set_dims(2, -1);
    CHECK(model.error() == "net.onnx: conv.weight: one of its extents is -1");
  }
  SECTION("a value that is not a number") {
    model.graph().mutable_initializer(0)->set_float_data(3, std::numeric_limits<float>::quiet_NaN());
    model.classify("c", 4);
    CHECK(model.error() ==
          "net.onnx: conv.weight: 1 of its 8 values is NaN or infinite, which cannot be trained: export the network "
          "with finite ones");
    CHECK(model.problems() == Names{"net.onnx: conv.weight: 1 of its 8 values is NaN or infinite, which cannot be "
                                    "trained: export the network with finite ones"});
  }
}

TEST_CASE("Images of an open size are an error, but a batch may be open") {
  const auto error = [](const Wholes& image) {
    return error_of([&] { OnnxModel(image).node("Relu", {"x"}, {"y"}).file(); });
  };
  for (const Wholes& image : {Wholes{-1, -1, 4, 4}, Wholes{-1, 2, -1, 4}, Wholes{1, 2, 4, -1}})
    CHECK(error(image) == "net.onnx: its input x leaves more than the batch open: export it with a fixed image size");
  CHECK(error({-1, 2, 4}) ==
        "net.onnx: its input x has 3 dimensions, but images have 4: batch, channels, height, width");
  CHECK(error({-1, 2, 4, std::int64_t{1} << 40}) == "net.onnx: its input x has an extent of 1099511627776");
  CHECK_NOTHROW(OnnxModel({-1, 2, 4, 4}).node("Relu", {"x"}, {"y"}).file());
  CHECK_NOTHROW(OnnxModel({3, 2, 4, 4}).node("Relu", {"x"}, {"y"}).file());
}

TEST_CASE("Every node of an ONNX file that cannot be read is named with its reason") {
  OnnxModel model = convolved();
  const auto expect = [&](const std::string& last, const Names& lines) {
    model.classify(last, 4);
    CHECK(model.problems() == lines);
    const std::string more =
        lines.size() > 1 ? fmt::format(", and {} more: see `annulus models --check`", lines.size() - 1) : "";
    CHECK(model.error() == "net.onnx: " + lines[0] + more);
  };
  SECTION("weights that do not fit") {
    model.parameter("next.weight", {4, 3, 1, 1}).node("Conv", {"c", "next.weight"}, {"a"});
    expect("a", {"node n_a (Conv): its weights of 4x3x1x1 do not fit 4 channels in 1 groups"});
  }
  SECTION("weights without elements") {
    model.parameter("next.weight", {4, 4, 0, 1}).node("Conv", {"c", "next.weight"}, {"a"});
    expect("a", {"node n_a (Conv): its input 1 has no elements"});
  }
  SECTION("a window larger than the images") {
    model.node("MaxPool", {"c"}, {"a"}, {{"kernel_shape", Wholes{5, 5}}});
    expect("a", {"node n_a (MaxPool): a 5x5 window does not fit images of 4x4 pixels: use larger images or another "
                 "model"});
  }
  SECTION("shapes that do not fit each other") {
    model.parameter("scale", {3, 1, 1}).node("Mul", {"c", "scale"}, {"a"});
    expect("a", {"node n_a (Mul): 61x4x4x4 and 3x1x1 do not fit each other"});
  }
  SECTION("another number of elements") {
    model.tensor<std::int64_t>("to", {3}, {-1, 5, 3}).node("Reshape", {"c", "to"}, {"a"});
    expect("a", {"node n_a (Reshape): 61x4x4x4 cannot be reshaped to 260x5x3"});
  }
  SECTION("images that are mixed") {
    model.node("Softmax", {"c"}, {"a"}, {{"axis", 4}});
    expect("a", {"node n_a (Softmax): there is no element 4 among 4"});
  }
  SECTION("too few inputs") {
    model.node("Conv", {"c"}, {"a"});
    expect("a", {"node n_a (Conv): it has no input 1"});
  }
  SECTION("operators without a rule, several at a time") {
    model.node("Sinh", {"c"}, {"s"}).node("Relu", {"s"}, {"r"}).node("ReduceMax", {"c"}, {"m"});
    model.node("Add", {"r", "m"}, {"sum"}).node("LSTM", {"c"}, {"l"}).node("Add", {"l", "sum"}, {"a"});
    expect("a", {"node n_s (Sinh): this operator is not supported: use an operator that `annulus models --check` lists",
                 "node n_m (ReduceMax): a reduction over all dimensions is not supported: keep the batch",
                 "node n_l (LSTM): this operator is not supported: use a network without recurrent layers"});
  }
  SECTION("operators of another domain") {
    model.node("FusedConv", {"c"}, {"a"}).graph().mutable_node(1)->set_domain("com.microsoft");
    expect("a", {"node n_a (FusedConv): operators of the domain com.microsoft are not supported: export the network "
                 "without them"});
  }
  SECTION("a loop") {
    model.node("Loop", {"", "", "c"}, {"a"});
    expect("a", {"node n_a (Loop): this operator is not supported: use a network without loops that depend on its "
                 "input"});
  }
  SECTION("a branch by the images") {
    model.node("If", {"c"}, {"a"});
    expect("a", {"node n_a (If): its condition depends on the images: export one branch"});
  }
  SECTION("a branch that reads what nothing computes") {
    model.number("always", 1).node("If", {"always"}, {"a"});
    onnx::AttributeProto& branch = *model.graph().mutable_node(1)->add_attribute();
    branch.set_name("then_branch");
    OnnxModel inner;
    inner.node("Relu", {"nowhere"}, {"b"});
    *branch.mutable_g() = inner.graph();
    branch.mutable_g()->mutable_output(0)->set_name("b");
    expect("a", {"node n_b (Relu): nothing computes nowhere"});
  }
  SECTION("an expansion to an enormous shape") {
    model.tensor<std::int64_t>("to", {4}, {1, 4, std::int64_t{1} << 30, 4}).node("Expand", {"c", "to"}, {"a"});
    expect("a", {"node n_a (Expand): its shape has the extent 1073741824"});
  }
  SECTION("repeats without an end") {
    model.tensor<std::int64_t>("many", {4}, {1, 1, 1, std::int64_t{1} << 60}).node("Tile", {"c", "many"}, {"a"});
    expect("a", {"node n_a (Tile): its repeats of 1x4x4x4 are 1152921504606846976"});
  }
  SECTION("dropout of a number") {
    model.number("half", 0.5f).tensor<std::int64_t>("always", {}, {1});
    model.node("Dropout", {"half", "half", "always"}, {"d"}).node("Mul", {"c", "d"}, {"a"});
    expect("a", {"node n_d (Dropout): only dropout of images is supported"});
  }
  SECTION("a split into no parts") {
    model.tensor<std::int64_t>("sizes", {0}, {}).tensor<std::int64_t>("first", {}, {0});
    model.node("GlobalAveragePool", {"c"}, {"p"}).node("SplitToSequence", {"p", "sizes"}, {"parts"}, {{"axis", 2}});
    model.node("SequenceAt", {"parts", "first"}, {"a"});
    expect("a", {"node n_parts (SplitToSequence): its parts do not add up to 1 elements"});
  }
  SECTION("a constant of too many elements") {
    model.tensor<std::int64_t>("to", {2}, {1 << 20, 1 << 20}).node("ConstantOfShape", {"to"}, {"zeros"});
    model.node("Add", {"c", "zeros"}, {"a"});
    expect("a", {"node n_zeros (ConstantOfShape): it computes a constant of too many elements"});
  }
  SECTION("an error function without the rest of GELU") {
    model.node("Erf", {"c"}, {"a"});
    const Names lines{"net.onnx: node n_a: Erf is supported only within GELU"};
    model.classify("a", 4);
    CHECK(model.problems() == lines);
    CHECK(model.error() == lines[0]);
  }
  SECTION("batch normalization with a momentum of PyTorch's kind") {
    for (const char* name : {"w", "b", "m", "v"}) model.parameter(name, {4});
    model.node("BatchNormalization", {"c", "w", "b", "m", "v"}, {"a"}, {{"momentum", 1.5f}});
    expect("a", {"node n_a (BatchNormalization): its momentum is 1.5, but it must be 0 to 1"});
  }
  SECTION("batch normalization of other channels") {
    for (const char* name : {"w", "b", "m", "v"}) model.parameter(name, {3});
    model.node("BatchNormalization", {"c", "w", "b", "m", "v"}, {"a"});
    expect("a", {"node n_a (BatchNormalization): its input 1 has 3 elements, but 4 are needed"});
  }
}

TEST_CASE("Tensors of ONNX files may be in other files of its folder") {
  const test::TemporaryFolder folder;
  OnnxModel model = convolved();
  model.classify("c", 4);
  onnx::TensorProto& tensor = *model.graph().mutable_initializer(0);
  tensor.clear_float_data();
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  const auto declare = [&](const std::string& key, const std::string& value) {
    onnx::StringStringEntryProto& entry = *tensor.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  };
  const std::string file = (folder / "net.onnx").string(), data = (folder / "net.data").string();
  const auto read = [&] {
    test::write_text(file, model.bytes());
    const OnnxFile parsed = OnnxFile::read(file);
    return read_network(parsed, exported_task(parsed));
  };
  const std::string start = file + ": conv.weight: its values are ";
  SECTION("in the file") {
    declare("location", "net.data");
    declare("offset", "4");
    declare("length", "32");
    const std::vector<float> values{9, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    test::write_text(data, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    CHECK(read().values.at("conv.weight") == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  }
  SECTION("in a file that is missing") {
    declare("location", "net.data");
    CHECK(error_of(read) == file + ": " + data + ": missing: copy it together with the ONNX file");
  }
  SECTION("in a file that is too short") {
    declare("location", "net.data");
    declare("length", "32");
    test::write_text(data, "short");
    CHECK(error_of(read) == start + "bytes 0 to 32 of " + data + ", which has 5: copy it again, beside the ONNX file");
  }
  SECTION("in a part of another size") {
    declare("location", "net.data");
    declare("length", "28");
    test::write_text(data, std::string(28, '\0'));
    CHECK(error_of(read) == start + "28 bytes, but it needs 32");
  }
  SECTION("in a part without a size, which is that of the tensor") {
    declare("location", "net.data");
    declare("offset", "32");
    test::write_text(data, std::string(100, '\0'));
    CHECK(read().values.at("conv.weight") == std::vector<float>(8));
    test::write_text(data, std::string(63, '\0'));
    CHECK(error_of(read) ==
          start + "bytes 32 to 64 of " + data + ", which has 63: copy it again, beside the ONNX file");
  }
  SECTION("at a place that is not a number") {
    declare("location", "net.data");
    declare("offset", "-1");
    test::write_text(data, "");
    CHECK(error_of(read) == file + ": conv.weight: offset of its external data is \"-1\"");
  }
  SECTION("outside the folder") {
    const std::string location = GENERATE(std::string("../net.data"), std::string("/etc/passwd"), std::string());
    declare("location", location);
    CHECK(error_of(read) == start + "in " + location + ", outside the file's folder");
  }
  SECTION("outside the folder by a link") {
    std::filesystem::create_symlink("/etc/passwd", data);
    declare("location", "net.data");
    CHECK(error_of(read) == start + "in net.data, outside the file's folder");
  }
  SECTION("again and again") {
    declare("location", "net.data");
    for (int i = 0; i < 2; ++i) {
      onnx::TensorProto& again = *model.graph().add_initializer() = tensor;
      again.set_name(fmt::format("again{}", i));
    }
    test::write_text(data, std::string(48, '\0'));
    CHECK(read().values.size() == 2);
    test::write_text(data, std::string(47, '\0'));
    CHECK(error_of(read) == file + ": again1: tensors with more bytes than " + data + " are in it: they overlap");
  }
  SECTION("nowhere, for a file that was given as bytes") {
    declare("location", "net.data");
    CHECK(model.error() == "net.onnx: conv.weight: its values are in another file");
  }
}

// A function {a, b} -> {r, s} of LeakyRelu, whose alpha it refers to, and of a product, and one that calls it.
OnnxModel with_functions() {
  OnnxModel model = convolved();
  model.proto.add_opset_import()->set_domain("local");
  const auto function = [&](const std::string& name, const Names& inputs, const Names& outputs) -> auto& {
    onnx::FunctionProto& added = *model.proto.add_functions();
    added.set_domain("local");
    added.set_name(name);
    added.mutable_input()->Assign(inputs.begin(), inputs.end());
    added.mutable_output()->Assign(outputs.begin(), outputs.end());
    added.add_attribute("slope");
    onnx::OperatorSetIdProto& version = *added.add_opset_import();
    version.set_domain("");
    version.set_version(17);
    return added;
  };
  const auto node = [](onnx::FunctionProto& to, const std::string& op, const Names& inputs, const Names& outputs) {
    onnx::NodeProto& added = *to.add_node();
    added.set_name("n_" + outputs[0]);
    added.set_op_type(op);
    added.mutable_input()->Assign(inputs.begin(), inputs.end());
    added.mutable_output()->Assign(outputs.begin(), outputs.end());
    return &added;
  };
  const auto refer = [](onnx::NodeProto* from, const std::string& attribute) {
    onnx::AttributeProto& reference = *from->add_attribute();
    reference.set_name(attribute);
    reference.set_ref_attr_name("slope");
    reference.set_type(onnx::AttributeProto::FLOAT);
  };
  onnx::FunctionProto& inner = function("Inner", {"a", "b"}, {"r", "s"});
  refer(node(inner, "LeakyRelu", {"a"}, {"c"}), "alpha");
  node(inner, "Mul", {"c", "b"}, {"r"});
  node(inner, "Sigmoid", {"c"}, {"s"});
  onnx::FunctionProto& outer = function("Outer", {"a", "scale", "missing"}, {"y", "a"});
  onnx::NodeProto* call = node(outer, "Inner", {"a", "scale"}, {"c", "gate"});
  call->set_domain("local");
  refer(call, "slope");
  node(outer, "Add", {"c", "gate"}, {"y"});
  return model;
}

// A call of a function of with_functions().
OnnxModel& call(OnnxModel& model, const std::string& name, const Names& inputs, const Names& outputs,
                float slope = 0.25f) {
  model.node(name, inputs, outputs, {{"slope", slope}});
  model.graph().mutable_node(model.graph().node_size() - 1)->set_domain("local");
  return model;
}

TEST_CASE("Functions of ONNX files are replaced by their nodes") {
  OnnxModel model = with_functions().parameter("block.scale", {4, 1, 1});
  call(model, "Outer", {"c", "block.scale"}, {"d", "e"}, 0.5f);
  model.node("Add", {"d", "e"}, {"f"});
  call(model, "Outer", {"f", "block.scale"}, {"a"});
  model.classify("a", 4);
  const OnnxFile file = model.file();
  const ImportedNetwork network = read_network(file, exported_task(file));
  std::vector<float> slopes;
  Names operations;
  for (const Node& node : network.graph.nodes()) {
    operations.emplace_back(name(node.operation));
    const auto* activation = std::get_if<Activation>(&node.operation);
    if (activation != nullptr && activation->function == Activation::Function::leaky_relu)
      slopes.push_back(activation->alpha);
  }
  CHECK(slopes == std::vector<float>{0.5f, 0.25f});
  CHECK(std::ranges::count(operations, "add") == 3);
  CHECK(parameters_of(network) == Names{"block.scale", "conv.weight", "head.weight"});
  const OnnxFile stripped = OnnxFile::parse(without_parameters(file, network), "stripped");
  CHECK(read_network(stripped, exported_task(file)).graph.description() == network.graph.description());
}

TEST_CASE("Functions of ONNX files that cannot be replaced are errors") {
  OnnxModel model = with_functions().parameter("scale", {4, 1, 1});
  call(model, "Outer", {"c", "scale"}, {"a"}).classify("a", 4);
  const auto inner = [&] { return model.proto.mutable_functions(0); };
  SECTION("a function that calls itself") {
    *inner()->add_node() = model.proto.functions(1).node(0);
    CHECK(model.error() == "net.onnx: function Inner calls itself");
  }
  SECTION("functions that call each other") {
    inner()->mutable_node(2)->set_op_type("Outer");
    inner()->mutable_node(2)->set_domain("local");
    CHECK(model.error() == "net.onnx: function Outer calls itself");
  }
  SECTION("operators of another version") {
    inner()->mutable_opset_import(0)->set_version(13);
    CHECK(model.error() ==
          "net.onnx: function Inner has operators of version 13, but the file of version 17: export it with one "
          "version");
  }
  SECTION("too many inputs") {
    call(model, "Inner", {"c", "c", "c"}, {"b"});
    CHECK(model.error() == "net.onnx: node n_b has 3 inputs and 1 outputs, but function Inner has 2 and 2");
  }
  SECTION("a function twice") {
    *model.proto.add_functions() = model.proto.functions(0);
    CHECK(model.error() == "net.onnx: function Inner is defined twice");
  }
}

TEST_CASE("Functions of ONNX files that become too large are errors") {
  OnnxModel model = with_functions().parameter("scale", {4, 1, 1});
  const std::string start = "net.onnx: its functions have more than ";
  SECTION("by calling each other") {
    for (int level = 0; level < 30; ++level) {  // each calls the one before twice
      onnx::FunctionProto& function = *model.proto.add_functions();
      function = model.proto.functions(1);
      function.set_name(fmt::format("Level{}", level));
      function.clear_node();
      for (const std::string output : {"y", "z"}) {
        onnx::NodeProto& node = *function.add_node() = model.proto.functions(1).node(0);
        node.set_op_type(level == 0 ? "Inner" : fmt::format("Level{}", level - 1));
        node.set_output(0, output);
        node.set_output(1, "gate_" + output);
      }
    }
    call(model, "Level29", {"c", "scale"}, {"a"}).classify("a", 4);
    CHECK(model.error() == start + "131072 nodes, if they are written out");
  }
  SECTION("by a long name") {
    call(model, "Inner", {"c", "scale"}, {"a"}).classify("a", 4);
    model.graph().mutable_node(1)->set_name(std::string(std::size_t{1} << 27, 'n'));
    CHECK(model.error() == start + "256 MiB, if they are written out");
  }
}

TEST_CASE("Many calls of a function without names are not named in quadratic time") {
  OnnxModel model = with_functions().parameter("scale", {4, 1, 1});
  std::string last = "c";
  for (int i = 0; i < 8'000; ++i) {
    const std::string output = fmt::format("r{}", i);
    call(model, "Inner", {last, "scale"}, {output});
    model.graph().mutable_node(i + 1)->clear_name();
    last = output;
  }
  model.classify(last, 4);
  const double start = processor_seconds();
  CHECK(model.file().graph().node_size() == 3 * 8'000 + 4);
  CHECK(processor_seconds() - start < 5);
}

TEST_CASE("Attributes of functions that a call does not give have their default") {
  OnnxModel model = with_functions().parameter("scale", {4, 1, 1});
  call(model, "Inner", {"c", "scale"}, {"a"}).classify("a", 4);
  model.graph().mutable_node(1)->clear_attribute();
  SECTION("of the operator") {
    CHECK(only<Activation>(model.read()).alpha == 0.01f);
  }
  SECTION("of the function") {
    onnx::AttributeProto slope;
    slope.set_name("slope");
    slope.set_type(onnx::AttributeProto::FLOAT);
    slope.set_f(0.75f);
    onnx::FunctionProto& inner = *model.proto.mutable_functions(0);
    constexpr int kDefaults = 11;  // attribute_proto, which came with version 1.13 of ONNX
    inner.GetReflection()->MutableUnknownFields(&inner)->AddLengthDelimited(kDefaults, slope.SerializeAsString());
    CHECK(only<Activation>(model.read()).alpha == 0.75f);
  }
}

TEST_CASE("Calls in the branches of functions are replaced") {
  OnnxModel model = with_functions().parameter("scale", {4, 1, 1}).tensor<std::int64_t>("always", {}, {1});
  onnx::FunctionProto& choice = *model.proto.add_functions();
  choice.set_domain("local");
  choice.set_name("Choice");
  for (const char* input : {"condition", "a", "b"}) choice.add_input(input);
  choice.add_output("chosen");
  onnx::NodeProto& branches = *choice.add_node();
  branches.set_op_type("If");
  branches.add_input("condition");
  branches.add_output("chosen");
  for (const char* name : {"then_branch", "else_branch"}) {
    onnx::AttributeProto& branch = *branches.add_attribute();
    branch.set_name(name);
    branch.set_type(onnx::AttributeProto::GRAPH);
    *branch.mutable_g()->add_node() = model.proto.functions(1).node(0);  // Inner
    branch.mutable_g()->mutable_node(0)->set_input(1, "b");
    branch.mutable_g()->mutable_node(0)->clear_attribute();
    branch.mutable_g()->add_output()->set_name("c");
  }
  call(model, "Choice", {"always", "c", "scale"}, {"a"}).classify("a", 4);
  CHECK(only<Activation>(model.read()).function == Activation::Function::leaky_relu);
}

TEST_CASE("a file of 10,000 nodes is not read in quadratic time") {
  OnnxModel model = convolved();
  std::string last = "c";
  for (int i = 0; i < 10'000; ++i) {
    const std::string output = fmt::format("r{}", i);
    model.node(i % 2 == 0 ? "Relu" : "Sigmoid", {last}, {output});
    model.graph().mutable_node(i + 1)->clear_name();
    last = output;
  }
  model.classify(last, 4);
  const OnnxFile file = model.file();
  const double start = processor_seconds();
  const ImportedNetwork network = read_network(file, exported_task(file));
  CHECK(processor_seconds() - start < 20);
  CHECK(network.graph.nodes().size() == 10'000 + 6);
  CHECK(network.graph.nodes()[10'001].name == "sigmoid_5000");
}

}  // namespace
}  // namespace annulus
