#include "src/onnx/trained_tensors.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <set>

#include "models/graph/state_dict.h"
#include "models/rewrites/freeze.h"
#include "src/onnx/properties.h"
#include "src/onnx/write.h"
#include "tests/unit/onnx_model.h"

namespace annulus {
namespace {

using test::convolved;
using test::Names;
using test::OnnxModel;
using test::read_twice;
using test::state_names;
using test::trained_names;
using test::Wholes;

// Marks a tensor as torch.export does.
void mark(OnnxModel& model, const std::string& tensor, const std::string& kind) {
  onnx::ValueInfoProto& value = *model.graph().add_value_info();
  value.set_name(tensor);
  set_only_property(value, PropertyField::value, "pkg.torch.export.graph_signature.InputSpec.kind", kind);
}

// Marks the tensors that are not buffers as parameters.
void mark_all(OnnxModel& model, const std::set<std::string>& buffers = {}) {
  for (const onnx::TensorProto& tensor : model.graph().initializer())
    mark(model, tensor.name(), buffers.contains(tensor.name()) ? "BUFFER" : "PARAMETER");
}

// The network after it was exported.
ImportedNetwork exported(const ImportedNetwork& network) {
  const auto values = [&](const std::string& name, const Shape&) -> std::span<const float> {
    return network.values.at(name);
  };
  const OnnxFile file = OnnxFile::parse(to_onnx("net", network.graph, values, {}), "exported");
  return read_network(file, exported_task(file));
}

using Set = std::set<std::string>;

TEST_CASE("Values show the buffers of files without marks", "[onnx_trained]") {
  OnnxModel model = convolved();
  std::vector<float> cosines, sines, both, sequence{1, 0.1f, 0.01f, 0.001f}, ones(16, 1), zeros(16, 0);
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 4; ++x) {
      cosines.push_back(std::cos(0.3f * static_cast<float>(y * x)));
      sines.push_back(std::sin(0.3f * static_cast<float>(y * x)));
      both.push_back(x % 2 == 0 ? std::sin(0.7f * static_cast<float>(y + x))
                                : std::cos(0.7f * static_cast<float>(y + x - 1)));
    }
  std::vector<float> mask(16, 0);
  mask[3] = -3.4e38f;
  const bool parameters = GENERATE(false, true);
  for (std::vector<float>* values : {&cosines, &both, &sequence, &mask})
    if (parameters) (*values)[1] += 0.5f;
  model.tensor<float>("cos", {4, 4}, cosines).tensor<float>("sin", {4, 4}, sines).tensor<float>("pe", {4, 4}, both);
  model.tensor<float>("mask", {4, 4}, mask).tensor<float>("slopes", {4}, sequence);
  model.tensor<float>("ones", {4, 4}, ones).tensor<float>("zeros", {4, 4}, zeros);
  std::string value = "c";
  for (const std::string name : {"cos", "sin", "pe", "slopes", "ones"}) {
    model.node("Mul", {value, name}, {"by_" + name});
    value = "by_" + name;
  }
  // What is a constant in the file is one in the checkpoint, too: read_twice() compares the names.
  model.tensor<float>("onnx::Mul_9", {4, 1, 1}, {1, 2, 3, 4}).node("Mul", {value, "onnx::Mul_9"}, {"scaled"});
  const float slope = std::sqrt(0.5f);
  model.tensor<float>("gains", {4, 4}, std::vector<float>(16, slope)).node("Mul", {"scaled", "gains"}, {"gained"});
  model.node("Add", {"gained", "zeros"}, {"z"}).node("Add", {"z", "mask"}, {"m"}).classify("m", 4);
  const ImportedNetwork network = read_twice(model);
  Set expected{"conv.weight", "head.weight", "ones", "zeros", "gains"};
  if (parameters) expected.insert({"cos", "sin", "pe", "slopes", "mask"});
  CHECK(trained_names(network.graph) == expected);
}

TEST_CASE("Parameters of any name and of no dimension are trained", "[onnx_trained]") {
  OnnxModel model = convolved();
  model.parameter("val_scale", {1, 4, 1, 1})
      .parameter("const_bias", {4, 1, 1})
      .parameter("layer_output_scale", {4, 1, 1});
  model.parameter("val_7", {4, 1, 1}).tensor<float>("temperature", {}, {0.5f});
  model.node("Mul", {"c", "val_scale"}, {"a"}).node("Add", {"a", "const_bias"}, {"b"});
  model.node("Mul", {"b", "layer_output_scale"}, {"d"}).node("Mul", {"d", "val_7"}, {"e"});
  model.node("Mul", {"e", "temperature"}, {"f"}).classify("f", 4);
  Set all{"conv.weight", "val_scale", "const_bias", "layer_output_scale", "val_7", "temperature", "head.weight"};
  SECTION("with marks") {
    mark_all(model);
    model.node("Relu", {"c"}, {"val_0"});  // as the newer exporter names values
  }
  SECTION("without marks, by the older exporter") {
    model.proto.set_producer_name("pytorch");
  }
  SECTION("without marks, by another program") {
    all.erase("temperature");
  }
  SECTION("without marks, if the exporter gives numbers to values") {
    model.proto.set_producer_name("pytorch");
    model.graph().mutable_node(2)->set_output(0, "val_2");
    model.graph().mutable_node(3)->set_input(0, "val_2");
    all.erase("val_7");
  }
  const ImportedNetwork network = read_twice(model);
  CHECK(trained_names(network.graph) == all);
  CHECK(state_names(network.graph) == all);
  for (const StateTensor& tensor : state_dict(network.graph))
    if (tensor.name == "temperature") CHECK(tensor.shape == Shape{});
  CHECK(network.trained.trained == all.size());
  CHECK(network.values.at("val_scale") == std::vector<float>{0, 1, 2, 3});
}

TEST_CASE("Names that exporters make up are those of constants, but of weights in layers", "[onnx_trained]") {
  for (const char* name : {"onnx::Mul_12", "12", "/body/Constant_output_0", "/body/Constant_1_output_0"}) {
    CAPTURE(name);
    OnnxModel model = convolved();
    model.parameter(name, {4, 1, 1}).node("Mul", {"c", name}, {"a"});
    model.parameter("onnx::Conv_13", {4, 4, 1, 1}).node("Conv", {"a", "onnx::Conv_13"}, {"b"}).classify("b", 4);
    const ImportedNetwork network = read_twice(model);
    CHECK(trained_names(network.graph) == Set{"conv.weight", "n_b.weight", "head.weight"});
    CHECK(network.trained.text() == fmt::format("trained: 3 tensors; not trained: 1 ({})", name));
    REQUIRE(network.notes.size() == 1);
    CHECK(network.notes[0].starts_with(fmt::format("{} is not trained: computed by the exporter", name)));
  }
}

TEST_CASE("Buffers are not trained, wherever they are used, and keep their names", "[onnx_trained]") {
  OnnxModel model = convolved();
  std::string name = "mid.k";
  SECTION("weights of a convolution") {
    model.parameter(name, {4, 1, 3, 3}).node("Conv", {"c", name}, {"a"}, {{"group", 4}, {"pads", Wholes{1, 1, 1, 1}}});
  }
  SECTION("a bias") {
    model.parameter(name, {4}).parameter("mid.w", {4, 4, 1, 1}).node("Conv", {"c", "mid.w", name}, {"a"});
  }
  SECTION("weights of a transposed convolution") {
    model.parameter(name, {4, 4, 2, 2}).node("ConvTranspose", {"c", name}, {"a"});
  }
  SECTION("slopes") {
    model.parameter(name, {4, 1, 1}).node("PRelu", {"c", name}, {"a"});
  }
  SECTION("a scale of group normalization") {
    model.parameter(name, {4}).parameter("mid.b", {4}).node("InstanceNormalization", {"c", name, "mid.b"}, {"a"});
  }
  SECTION("a scale of layer normalization") {
    model.parameter(name, {4}).node("LayerNormalization", {"c", name}, {"a"});
  }
  SECTION("a factor of a product of matrices") {
    model.parameter(name, {4, 4}).node("MatMul", {"c", name}, {"a"});
  }
  model.classify("a", 4);
  mark_all(model, {name});
  const ImportedNetwork network = read_twice(model);
  CHECK_FALSE(trained_names(network.graph).contains(name));
  CHECK(state_names(network.graph).contains(name));
  CHECK(frozen_names(network.graph) == Names{name});
  CHECK(network.trained.trained == static_cast<std::size_t>(model.graph().initializer_size()) - 1);
  CHECK(network.trained.not_trained == Names{name});
  CHECK(network.notes.empty());
  CHECK(trained_names(exported(network).graph) == trained_names(network.graph));
  CHECK(frozen_names(exported(network).graph) == Names{name});
}

TEST_CASE("Buffers in arithmetic and behind views are constants", "[onnx_trained]") {
  OnnxModel model = convolved();
  model.parameter("mid.k", {4}).tensor<std::int64_t>("to", {3}, {4, 1, 1});
  SECTION("reshaped") {
    model.node("Reshape", {"mid.k", "to"}, {"k"}).node("Mul", {"c", "k"}, {"a"});
  }
  SECTION("transposed") {
    model.parameter("m", {4, 4}).node("Transpose", {"m"}, {"t"}).node("Mul", {"c", "t"}, {"b"});
    model.node("Mul", {"b", "mid.k"}, {"a"});
  }
  SECTION("the same everywhere") {
    model.node("Identity", {"mid.k"}, {"k"}).node("Mul", {"c", "k"}, {"a"});
  }
  model.classify("a", 4);
  mark_all(model, {"mid.k", "m"});
  const ImportedNetwork network = read_twice(model);
  CHECK(trained_names(network.graph) == Set{"conv.weight", "head.weight"});
  CHECK(network.trained.trained == 2);
  CHECK(network.trained.not_trained.back() == (network.trained.not_trained.size() == 1 ? "mid.k" : "m"));
}

TEST_CASE("Parameters keep their names in layers", "[onnx_trained]") {
  OnnxModel model = convolved();
  model.parameter("mid.k", {4, 4, 1, 1}).parameter("mid.b.bias", {4}).node("Conv", {"c", "mid.k", "mid.b.bias"}, {"a"});
  model.parameter("gamma", {4}).parameter("beta", {4}).node("InstanceNormalization", {"a", "gamma", "beta"}, {"b"});
  const bool marks = GENERATE(true, false);
  model.classify("b", 4);
  if (marks) mark_all(model);
  const ImportedNetwork network = read_twice(model);
  const Set all{"conv.weight", "mid.k", "mid.b.bias", "gamma", "beta", "head.weight"};
  CHECK(state_names(network.graph) == all);
  CHECK(network.values.at("mid.b.bias") == std::vector<float>{0, 1, 2, 3});
}

TEST_CASE("Group normalization is trained though the older exporter reshaped the scale and the shift",
          "[onnx_trained]") {
  OnnxModel model = convolved();
  model.tensor<float>("onnx::ones", {2}, {1, 1}).tensor<float>("onnx::zeros", {2}, {0, 0});
  model.tensor<std::int64_t>("to", {3}, {0, 2, -1}).tensor<std::int64_t>("back", {4}, {-1, 4, 4, 4});
  const bool fresh = GENERATE(true, false);
  model.tensor<float>("onnx::Mul_7", {4, 1, 1}, fresh ? std::vector<float>(4, 1) : std::vector<float>{1, 2, 3, 4});
  model.tensor<float>("onnx::Add_8", {4, 1, 1}, fresh ? std::vector<float>(4, 0) : std::vector<float>{1, 2, 3, 4});
  model.node("Reshape", {"c", "to"}, {"groups"})
      .node("InstanceNormalization", {"groups", "onnx::ones", "onnx::zeros"}, {"norm"});
  model.node("Reshape", {"norm", "back"}, {"images"}).node("Mul", {"images", "onnx::Mul_7"}, {"scaled"});
  model.node("Add", {"scaled", "onnx::Add_8"}, {"a"});
  model.graph().mutable_node(model.graph().node_size() - 1)->set_name("/body/body.norm/Add");
  const ImportedNetwork network = read_twice(model.classify("a", 4));
  CHECK(trained_names(network.graph) == Set{"conv.weight", "body.norm.weight", "body.norm.bias", "head.weight"});
  CHECK(network.values.at("body.norm.weight") == (fresh ? std::vector<float>(4, 1) : std::vector<float>{1, 2, 3, 4}));
}

TEST_CASE("Matrices of features and units keep their order in the state_dict", "[onnx_trained]") {
  OnnxModel model = convolved();
  model.parameter("mid.k", {4, 5}).node("MatMul", {"c", "mid.k"}, {"a"}).classify("a", 4);
  const ImportedNetwork network = read_twice(model);
  const auto tensors = state_dict(network.graph);
  const auto k = std::ranges::find(tensors, "mid.k", &StateTensor::name);
  REQUIRE(k != tensors.end());
  CHECK(k->shape == Shape{4, 5});
  CHECK(k->transposed);
  std::vector<float> stored(20);
  std::iota(stored.begin(), stored.end(), 0.0f);
  CHECK(transposed(network.values.at("mid.k"), k->parameter_shape) == stored);
}

TEST_CASE("Batch normalization without a scale and a shift has none that are trained", "[onnx_trained]") {
  OnnxModel model = convolved();
  model.parameter("mid.running_mean", {4}).parameter("mid.running_var", {4}).parameter("head.weight", {3, 4});
  Names inputs{"c", "ones", "zeros", "mid.running_mean", "mid.running_var"};
  SECTION("constants") {
    model.tensor<float>("number", {1}, {1}).tensor<std::int64_t>("size", {1}, {4});
    model.tensor<float>("none", {1}, {0});
    model.node("Expand", {"number", "size"}, {"ones"}).node("Expand", {"none", "size"}, {"zeros"});
    mark_all(model, {"mid.running_mean", "mid.running_var", "number", "none"});
  }
  SECTION("of the older exporter") {
    for (const char* name : {"ones", "zeros"}) {
      model.node("Constant", {}, {name});
      onnx::AttributeProto& value = *model.graph().mutable_node(model.graph().node_size() - 1)->add_attribute();
      value.set_name("value");
      value.set_type(onnx::AttributeProto::TENSOR);
      value.mutable_t()->add_dims(4);
      test::set_values(*value.mutable_t(), std::vector<float>(4, name == std::string("ones") ? 1.0f : 0.0f));
    }
  }
  SECTION("stored once with the statistics") {
    inputs[1] = "mid.running_var";
    inputs[2] = "mid.running_mean";
    mark_all(model, {"mid.running_mean", "mid.running_var"});
  }
  model.node("BatchNormalization", inputs, {"a"});
  model.node("GlobalAveragePool", {"a"}, {"pooled"}).node("Flatten", {"pooled"}, {"flat"});
  model.node("Gemm", {"flat", "head.weight"}, {"y"}, {{"transB", 1}});
  const ImportedNetwork network = read_twice(model);
  CHECK(trained_names(network.graph) == Set{"conv.weight", "head.weight"});
  CHECK(state_names(network.graph) ==
        Set{"conv.weight", "head.weight", "mid.running_mean", "mid.running_var", "mid.num_batches_tracked"});
  CHECK(network.values.at("mid.running_var") == std::vector<float>{0, 1, 2, 3});
  CHECK(trained_names(exported(network).graph) == trained_names(network.graph));
  CHECK(state_names(exported(network).graph) == state_names(network.graph));
}

TEST_CASE("What a file's optimizer computed from a parameter is trained if it has the same elements",
          "[onnx_trained]") {
  const auto fold = [](OnnxModel& model, const std::string& tensor, const std::string& from) {
    onnx::ValueInfoProto& value = *model.graph().add_value_info();
    value.set_name(tensor);
    set_only_property(value, PropertyField::value, "pkg.onnxscript.optimizer.folded_from", from);
  };
  OnnxModel model = convolved();
  model.parameter("val_9", {4, 1, 1})
      .parameter("exp", {})
      .node("Mul", {"c", "val_9"}, {"b"})
      .node("Mul", {"b", "exp"}, {"a"})
      .classify("a", 4);
  mark(model, "conv.weight", "PARAMETER");
  mark(model, "head.weight", "PARAMETER");
  set_only_property(model.graph(), PropertyField::graph, "pkg.torch.export.ExportedProgram.graph_signature",
                    "\n# inputs\np_gamma: PARAMETER target='mid.gamma'\nb_k: BUFFER target='mid.k' persistent=True\n");
  SECTION("a view") {
    fold(model, "val_9", "['mid.gamma', 'val_3', 'unsqueeze_1']");
    CHECK(trained_names(read_twice(model).graph) == Set{"conv.weight", "head.weight", "mid.gamma"});
  }
  SECTION("a function") {
    fold(model, "val_9", "['mid.k', 'view']");
    fold(model, "exp", "['mid.gamma']");
    CHECK(model.error() ==
          "net.onnx: the exporter merged or dropped 1 of PyTorch's parameters (mid.gamma): export with optimize=False");
  }
}

TEST_CASE("Parameters that a network does not use are reported", "[onnx_trained]") {
  OnnxModel model = convolved();
  model.classify("c", 4);
  mark_all(model);
  set_only_property(model.graph(), PropertyField::graph, "pkg.torch.export.ExportedProgram.graph_signature",
                    "\n# inputs\np_aux: PARAMETER target='aux.weight'\n");
  CHECK(read_twice(model).notes == Names{"the network does not use 1 of PyTorch's parameters (aux.weight)"});
}

TEST_CASE("A parameter that the network cannot train is an error if the file marks it", "[onnx_trained]") {
  OnnxModel model = convolved();
  model.tensor<float>("mid.p", {1}, {2}).node("Clip", {"c", "", "mid.p"}, {"a"}).classify("a", 4);
  CHECK(read_twice(model).trained.text() == "trained: 2 tensors; not trained: 1 (mid.p)");
  mark_all(model);
  CHECK(model.problems() == Names{"node n_a (Clip): its input 2 is the parameter mid.p, which cannot be trained there: "
                                  "register it as a buffer, then export again"});
}

TEST_CASE("Parameters combined with the images are trained if the file marks them", "[onnx_trained]") {
  OnnxModel model;
  model.parameter("shift", {2, 1, 1}).node("Sub", {"x", "shift"}, {"c"}).classify("c", 2);
  CHECK(read_twice(model).trained.not_trained == Names{"shift"});
  mark_all(model);
  CHECK(trained_names(read_twice(model).graph) == Set{"shift", "head.weight"});
}

TEST_CASE("Parameters that the output does not depend on are reported", "[onnx_trained]") {
  OnnxModel model = convolved();
  model.parameter("other", {4, 1, 1}).node("Mul", {"c", "other"}, {"a"}).classify("c", 4);
  mark_all(model);
  CHECK(read_twice(model).trained.text() ==
        "trained: 2 tensors; not trained: 0; the output does not depend on 1 (other)");
}

}  // namespace
}  // namespace annulus
