// Layers of ONNX files whose weights are computed from parameters.

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "models/network/model.h"
#include "tests/unit/onnx_model.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

using test::Names;
using test::OnnxModel;
using test::Wholes;

// Adds a parameter whose element i is sin(0.7 i + phase) / 2.
void add_wave(OnnxModel& model, const std::string& name, const Wholes& shape, double phase) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(std::sin(0.7 * static_cast<double>(i) + phase) / 2));
  model.tensor(name, shape, values);
}

// The gradients of the mean loss of two images by every parameter that is trained: the sum of element i times cos i.
std::map<std::string, double> gradients(const OnnxModel& onnx) {
  const OnnxFile file = onnx.file();
  Task task = exported_task(file);
  task.mean.assign(task.image.channels, 0);
  task.stddev.assign(task.image.channels, 1);
  const ImportedNetwork network = read_network(file, task);
  const auto device = test::make_device(1);
  annulus::Model model(*device, network.graph, Mode::training, 2);
  for (const Parameter& p : model.parameters().all())
    if (const auto values = network.values.find(p.name); values != network.values.end())
      device->write(values->second, p.spec, model.parameters().weight(p));
  model.parameters().weights_changed();
  std::vector<std::uint8_t> pixels(2 * task.image.height * task.image.width * task.image.channels);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * i % 251);
  Network& planned = model.network(Mode::training, 2);
  const std::vector<std::int32_t> labels{0, 2};
  planned.load(pixels, {.classes = labels});
  planned.forward();
  planned.backward(0.5f);
  std::map<std::string, double> sums;
  for (const auto& [name, values] : test::gradients(*device, model.parameters())) {
    if (name.find(".running_") != std::string::npos) continue;
    for (std::size_t i = 0; i < values.size(); ++i)
      sums[name] += static_cast<double>(values[i]) * std::cos(static_cast<double>(i));
  }
  return sums;
}

void check(const std::map<std::string, double>& found, const std::map<std::string, double>& expected) {
  Names names, expected_names;
  for (const auto& [name, sum] : found) names.push_back(name);
  for (const auto& [name, sum] : expected) expected_names.push_back(name);
  REQUIRE(names == expected_names);
  for (const auto& [name, sum] : expected) {
    CAPTURE(name);
    CHECK(found.at(name) == Approx(sum).epsilon(1e-4).margin(1e-6));
  }
}

// The network's layers but the input, the mean image, the head and the loss.
Names middle(const OnnxModel& model) {
  Names all;
  const ImportedNetwork network = model.read();
  for (const Node& node : network.graph.nodes()) all.emplace_back(name(node.operation));
  return {all.begin() + 1, all.end() - 4};
}

// The mean image of `from`, of `channels`, and a dense layer of 3 classes.
void classify(OnnxModel& model, const std::string& from, std::int64_t channels) {
  add_wave(model, "head.weight", {3, channels}, 0.3);
  model.node("GlobalAveragePool", {from}, {"pooled"}).node("Flatten", {"pooled"}, {"flat"});
  model.node("Gemm", {"flat", "head.weight"}, {"y"}, {{"transB", 1}});
}

// Expected values of this file are PyTorch's, in float64.
TEST_CASE("Standardized weights of ONNX files are trained as PyTorch does") {
  OnnxModel model;
  add_wave(model, "conv.weight", {4, 2, 3, 3}, 0);
  add_wave(model, "conv.bias", {4}, 1);
  model.number("epsilon", 1e-5f);
  const test::AttributeValues over{{"axes", Wholes{1, 2, 3}}};
  model.node("ReduceMean", {"conv.weight"}, {"m"}, over).node("Sub", {"conv.weight", "m"}, {"centred"});
  model.node("Mul", {"centred", "centred"}, {"squares"}).node("ReduceMean", {"squares"}, {"variance"}, over);
  model.node("Add", {"variance", "epsilon"}, {"positive"}).node("Sqrt", {"positive"}, {"std"});
  model.node("Div", {"centred", "std"}, {"w"}).node("Conv", {"x", "w", "conv.bias"}, {"c"});
  model.node("Relu", {"c"}, {"r"});
  classify(model, "r", 4);
  check(gradients(model), {{"conv.bias", 0.0586725515}, {"conv.weight", 0.21219955}, {"head.weight", 0.029876303}});
}

TEST_CASE("Batch normalization of weights of ONNX files has the statistics of the weights") {
  OnnxModel model;
  add_wave(model, "conv.weight", {4, 1, 3, 3}, 0);
  add_wave(model, "conv.gain", {4, 1, 1, 1}, 1);
  model.tensor<std::int64_t>("rows", {3}, {1, 4, -1}).tensor<std::int64_t>("all", {1}, {-1});
  model.tensor<std::int64_t>("filters", {4}, {4, 1, 3, 3});
  model.tensor<float>("zeros", {4}, {0, 0, 0, 0});
  model.node("Constant", {}, {"scale"}, {{"value_float", 0.4f}}).node("Mul", {"conv.gain", "scale"}, {"g"});
  model.node("Reshape", {"conv.weight", "rows"}, {"by_row"}).node("Reshape", {"g", "all"}, {"gain"});
  const bool own = GENERATE(true, false);
  if (own) {
    model.node("BatchNormalization", {"by_row", "gain", "zeros", "zeros", "zeros"}, {"n", "mean", "variance"},
               {{"training_mode", 1}});
  } else {  // statistics that other nodes compute
    model.node("ReduceMean", {"by_row"}, {"m"}, {{"axes", Wholes{0, 2}}, {"keepdims", 1}});
    model.node("Sub", {"by_row", "m"}, {"centred"}).node("Mul", {"centred", "centred"}, {"squares"});
    model.node("ReduceMean", {"squares"}, {"v"}, {{"axes", Wholes{0, 2}}, {"keepdims", 0}});
    model.node("Reshape", {"m", "all"}, {"mean"});
    model.node("BatchNormalization", {"by_row", "gain", "zeros", "mean", "v"}, {"n"});
  }
  model.node("Reshape", {"n", "filters"}, {"w"})
      .node("Conv", {"x", "w"}, {"c"}, {{"group", 2}})
      .node("Tanh", {"c"}, {"t"});
  classify(model, "t", 4);
  check(gradients(model),
        {{"conv.gain", -0.074432412}, {"conv.weight", -0.0456265477}, {"head.weight", -0.0137764212}});
}

TEST_CASE("Weight normalization of ONNX files is trained as PyTorch does") {
  OnnxModel model;
  add_wave(model, "up.original0", {2, 1, 1, 1}, 1);
  add_wave(model, "up.original1", {2, 4, 3, 3}, 0);
  model.node("ReduceL2", {"up.original1"}, {"norm"}, {{"axes", Wholes{1, 2, 3}}});
  model.node("Div", {"up.original0", "norm"}, {"factor"}).node("Mul", {"up.original1", "factor"}, {"w"});
  model.node("ConvTranspose", {"x", "w"}, {"c"}, {{"strides", Wholes{2, 2}}}).node("Tanh", {"c"}, {"t"});
  classify(model, "t", 4);
  check(gradients(model),
        {{"head.weight", -1.34024752e-05}, {"up.original0", -0.000159206748}, {"up.original1", 0.00288425614}});
}

TEST_CASE("Cosine classifiers of ONNX files are trained as PyTorch does") {
  OnnxModel model;
  add_wave(model, "conv.weight", {4, 2, 1, 1}, 0);
  add_wave(model, "centres", {3, 4}, 1);
  model.node("Conv", {"x", "conv.weight"}, {"c"}).node("GlobalAveragePool", {"c"}, {"p"}).node("Flatten", {"p"}, {"f"});
  model.number("scale", 5);
  for (const auto& [from, to] : {std::pair{"f", "a"}, {"centres", "b"}}) {
    const std::string name = to;
    model.node("ReduceL2", {from}, {name + "_norm"}, {{"axes", Wholes{1}}});
    model.node("Div", {from, name + "_norm"}, {name});
  }
  const bool gemm = GENERATE(true, false);
  if (gemm)
    model.node("Gemm", {"a", "b"}, {"cosine"}, {{"transB", 1}});
  else
    model.node("Transpose", {"b"}, {"bt"}, {{"perm", Wholes{1, 0}}}).node("MatMul", {"a", "bt"}, {"cosine"});
  model.node("Mul", {"cosine", "scale"}, {"y"});
  check(gradients(model), {{"centres", 3.79365345}, {"conv.weight", 0.796086881}});
}

TEST_CASE("Weights of ONNX files may be stored in another order or shape") {
  OnnxModel model;
  add_wave(model, "kernel", {3, 3, 2, 4}, 0);
  add_wave(model, "twice", {2}, 1);
  model.tensor<std::int64_t>("two", {2}, {2, 1}).tensor<std::int64_t>("four", {1}, {4});
  model.node("Transpose", {"kernel"}, {"w"}, {{"perm", Wholes{3, 2, 0, 1}}});
  model.node("Reshape", {"twice", "two"}, {"column"}).node("Concat", {"column", "column"}, {"b4"}, {{"axis", 1}});
  model.node("Reshape", {"b4", "four"}, {"b"}).node("Conv", {"x", "w", "b"}, {"c"}).node("Tanh", {"c"}, {"t"});
  classify(model, "t", 4);
  check(gradients(model), {{"head.weight", 0.0208791555}, {"kernel", -0.0325956127}, {"twice", -0.316286368}});
  const ImportedNetwork network = model.read();
  CHECK(network.values.at("kernel").size() == 72);
}

TEST_CASE("Slopes of ONNX files that are only reshaped are a layer's own") {
  OnnxModel model;
  add_wave(model, "conv.weight", {4, 2, 3, 3}, 0);
  const bool one = GENERATE(false, true);
  add_wave(model, "act.weight", {one ? 1 : 4}, 1);
  model.tensor<std::int64_t>("shape", {4}, {1, -1, 1, 1});
  model.node("Conv", {"x", "conv.weight"}, {"c"});
  if (one)
    model.tensor<std::int64_t>("axes", {2}, {1, 2}).node("Unsqueeze", {"act.weight", "axes"}, {"slopes"});
  else
    model.node("Reshape", {"act.weight", "shape"}, {"slopes"});
  model.node("PRelu", {"c", "slopes"}, {"r"});
  classify(model, "r", 4);
  CHECK(middle(model) == Names{"convolution", "prelu"});
  if (one)
    check(gradients(model),
          {{"act.weight", 0.420333159}, {"conv.weight", -0.0586431481}, {"head.weight", -0.144137124}});
  else
    check(gradients(model),
          {{"act.weight", -0.131782297}, {"conv.weight", 0.029260374}, {"head.weight", -0.0167172291}});
}

TEST_CASE("Scales of norms of ONNX files may be computed") {
  OnnxModel model;
  add_wave(model, "conv.weight", {4, 2, 1, 1}, 0);
  add_wave(model, "scale", {4}, 1);
  add_wave(model, "shift", {4}, 2);
  model.number("one", 1).node("Add", {"scale", "one"}, {"s"}).node("Mul", {"shift", "shift"}, {"b"});
  model.node("Conv", {"x", "conv.weight"}, {"c"});
  const bool batch_norm = GENERATE(true, false);
  if (batch_norm) {
    model.tensor<float>("bn.running_mean", {4}, {0, 0, 0, 0}).tensor<float>("bn.running_var", {4}, {1, 1, 1, 1});
    model.node("BatchNormalization", {"c", "s", "b", "bn.running_mean", "bn.running_var"}, {"n"})
        .node("Tanh", {"n"}, {"t"});
  } else {
    model.tensor<std::int64_t>("tokens", {3}, {0, 4, 16}).node("Reshape", {"c", "tokens"}, {"planes"});
    model.node("Transpose", {"planes"}, {"rows"}, {{"perm", Wholes{0, 2, 1}}});
    model.node("LayerNormalization", {"rows", "s", "b"}, {"n"});
    model.tensor<std::int64_t>("images", {4}, {0, 4, 4, 4});
    model.node("Transpose", {"n"}, {"back"}, {{"perm", Wholes{0, 2, 1}}}).node("Reshape", {"back", "images"}, {"i"});
    model.node("Tanh", {"i"}, {"t"});
  }
  classify(model, "t", 4);
  if (batch_norm)
    check(gradients(model), {{"conv.weight", -0.0846952055},
                             {"head.weight", 0.159152144},
                             {"scale", -0.0423268263},
                             {"shift", -0.173902182}});
  else
    check(gradients(model), {{"conv.weight", 0.649687554},
                             {"head.weight", -0.444202237},
                             {"scale", -0.16772284},
                             {"shift", -0.0943603086}});
}

TEST_CASE("Powers of ONNX files can be trained") {
  OnnxModel model;
  add_wave(model, "conv.weight", {4, 2, 3, 3}, 0);
  model.proto.set_producer_name("pytorch");
  model.tensor<float>("p", {1}, {2.5f}).number("least", 1e-6f);
  model.node("Conv", {"x", "conv.weight"}, {"c"}).node("Clip", {"c", "least"}, {"positive"});
  model.node("Pow", {"positive", "p"}, {"powers"}).node("GlobalAveragePool", {"powers"}, {"mean"});
  model.node("Reciprocal", {"p"}, {"inverse"}).node("Pow", {"mean", "inverse"}, {"pool"});
  classify(model, "pool", 4);
  check(gradients(model), {{"conv.weight", 0.166229791}, {"head.weight", -0.0244708866}, {"p", -0.0119394615}});
}

TEST_CASE("Products with vectors of ONNX files, as spectral normalization has them") {
  OnnxModel model;
  add_wave(model, "conv.weight", {4, 2, 1, 1}, 0);
  model.tensor<float>("u", {4}, {0.5f, -0.5f, 0.5f, 0.5f}).tensor<float>("v", {2}, {0.6f, 0.8f});
  for (const std::string name : {"u", "v"}) model.node("Identity", {name}, {name + "_"});
  model.tensor<std::int64_t>("matrix", {2}, {4, 2}).node("Reshape", {"conv.weight", "matrix"}, {"m"});
  model.node("MatMul", {"m", "v_"}, {"mv"}).node("MatMul", {"u_", "mv"}, {"sigma"});
  model.node("Div", {"conv.weight", "sigma"}, {"w"}).node("Conv", {"x", "w"}, {"c"}).node("Tanh", {"c"}, {"t"});
  classify(model, "t", 4);
  const auto found = gradients(model);
  CHECK(found.at("conv.weight") == Approx(-0.117507355).epsilon(1e-4));
}

TEST_CASE("Only weights that depend on the images are refused, and the error says so") {
  OnnxModel model;
  add_wave(model, "l.weight", {16, 2}, 0);
  model.tensor<std::int64_t>("shape", {4}, {-1, 2, 1, 1});
  model.node("GlobalAveragePool", {"x"}, {"p"}).node("Flatten", {"p"}, {"f"});
  model.node("Gemm", {"f", "l.weight"}, {"dynamic"}, {{"transB", 1}}).node("Reshape", {"dynamic", "shape"}, {"w"});
  model.node("Conv", {"x", "w"}, {"c"});
  classify(model, "c", 4);
  CHECK_THAT(model.problems().at(0),
             Catch::Contains("its weights are computed from the images: dynamic weights are not supported"));
}

}  // namespace
}  // namespace annulus
