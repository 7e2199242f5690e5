#include "src/onnx/separate_tensors.h"

#include <catch2/catch.hpp>
#include <set>

#include "models/graph/state_dict.h"
#include "src/onnx/properties.h"
#include "tests/unit/onnx_model.h"

namespace annulus {
namespace {

using test::convolved;
using test::Names;
using test::OnnxModel;
using test::read_twice;
using test::shared_names;
using test::state_names;
using test::trained_names;
using test::Wholes;
using Set = std::set<std::string>;

void add_property(google::protobuf::Message& message, PropertyField field, const std::string& key,
                  const std::string& value) {
  onnx::StringStringEntryProto entry;
  entry.set_key(key);
  entry.set_value(value);
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(static_cast<int>(field),
                                                                              entry.SerializeAsString());
}

// Gives the last node what PyTorch's newer exporter writes: its module, and the parameters of the traced operation.
void trace(OnnxModel& model, const std::string& module, const Names& parameters) {
  onnx::NodeProto& node = *model.graph().mutable_node(model.graph().node_size() - 1);
  add_property(node, PropertyField::node, "pkg.torch.onnx.name_scopes", "['', '" + module + "', 'op']");
  std::string text = "%op : [num_users=1] = call_function[target=torch.ops.aten.op.default](args = (%x";
  for (const std::string& parameter : parameters) text += ", %" + parameter;
  add_property(node, PropertyField::node, "pkg.torch.onnx.fx_node", text + "), kwargs = {})");
}

// Writes the signature of torch.export's graph: parameters are called p_mid_weight in it, and buffers b_mid_weight.
void sign(OnnxModel& model, const Names& parameters, const Names& buffers = {}) {
  std::string text = "\n# inputs\n";
  for (const auto& [all, prefix, kind] : {std::tuple(parameters, "p_", "PARAMETER"), {buffers, "b_", "BUFFER"}})
    for (std::string name : all) {
      const std::string target = name;
      std::ranges::replace(name, '.', '_');
      text += fmt::format("{}{}: {} target='{}'\n", prefix, name, kind, target);
    }
  add_property(model.graph(), PropertyField::graph, "pkg.torch.export.ExportedProgram.graph_signature", text);
}

OnnxModel& named(OnnxModel& model, const std::string& path) {
  model.graph().mutable_node(model.graph().node_size() - 1)->set_name(path);
  return model;
}

const std::vector<float> kOnes(4, 1.0f), kZeros(4, 0.0f);

}  // namespace

TEST_CASE("Layers share a parameter if their module is called several times", "[onnx_separate]") {
  OnnxModel model = convolved();
  model.parameter("mid.weight", {4, 4, 1, 1}).tensor("mid.bias", {4}, kZeros).tensor("norm.weight", {4}, kOnes);
  std::string value = "c";
  const bool newer = GENERATE(false, true);
  for (int call = 0; call < 3; ++call) {
    const std::string suffix = call == 0 ? "" : fmt::format("_{}", call);
    model.node("Conv", {value, "mid.weight", "mid.bias"}, {"m" + suffix});
    newer ? trace(model, "mid", {"p_mid_weight", "p_mid_bias"}) : void(named(model, "/mid" + suffix + "/Conv"));
    model.node("Transpose", {"m" + suffix}, {"t" + suffix}, {{"perm", Wholes{0, 2, 3, 1}}});
    model.node("LayerNormalization", {"t" + suffix, "norm.weight"}, {"n" + suffix});
    newer ? trace(model, "norm", {"p_norm_weight"}) : void(named(model, "/norm" + suffix + "/LayerNormalization"));
    model.node("Transpose", {"n" + suffix}, {value = "v" + suffix}, {{"perm", Wholes{0, 3, 1, 2}}});
  }
  model.classify(value, 4);
  if (newer) sign(model, {"conv.weight", "mid.weight", "mid.bias", "norm.weight", "head.weight"});
  const ImportedNetwork network = read_twice(model);
  CHECK(trained_names(network.graph) == Set{"conv.weight", "mid.weight", "mid.bias", "norm.weight", "head.weight"});
  CHECK(shared_names(network.graph) == Set{"weight = mid.weight", "bias = mid.bias", "weight = norm.weight"});
  CHECK(network.notes.empty());
}

TEST_CASE("Layers of equal tensors that an exporter stored once train their own", "[onnx_separate]") {
  OnnxModel model = convolved();
  model.tensor("a.weight", {4}, kOnes).tensor("a.bias", {4}, kZeros);
  const bool newer = GENERATE(false, true);
  std::string value = "c";
  for (const std::string norm : {"a", "b"}) {
    model.node("InstanceNormalization", {value, "a.weight", "a.bias"}, {norm});
    newer ? trace(model, norm, {"p_" + norm + "_weight", "p_" + norm + "_bias"})
          : void(named(model, "/" + norm + "/InstanceNormalization"));
    value = norm;
  }
  model.classify(value, 4);
  if (newer) sign(model, {"conv.weight", "a.weight", "a.bias", "b.weight", "b.bias", "head.weight"});
  const ImportedNetwork network = read_twice(model);
  CHECK(trained_names(network.graph) == Set{"conv.weight", "a.weight", "a.bias", "b.weight", "b.bias", "head.weight"});
  CHECK(shared_names(network.graph).empty());
  CHECK(network.values.at("b.weight") == kOnes);
  CHECK(network.notes == Names{"b.bias and 1 more are stored together with equal ones; each is trained on its own"});
}

TEST_CASE("A module with two names has parameters with both", "[onnx_separate]") {
  OnnxModel model = convolved();
  model.parameter("again.weight", {4, 4, 1, 1}).node("Conv", {"c", "again.weight"}, {"a"});
  trace(model, "first", {"p_again_weight"});
  model.classify("a", 4);
  sign(model, {"conv.weight", "first.weight", "again.weight", "head.weight", "never.weight"});
  const ImportedNetwork network = read_twice(model);
  CHECK(state_names(network.graph) == Set{"conv.weight", "first.weight", "again.weight", "head.weight"});
  CHECK(network.notes == Names{"first.weight is taken for a second name of again.weight: nothing reads it",
                               "the network does not use 1 of PyTorch's parameters (never.weight)"});
}

TEST_CASE("A bias that a module holds beside its layer has both names", "[onnx_separate]") {
  OnnxModel model = convolved();
  trace(model, "conv", {"p_conv_weight"});
  const bool several = GENERATE(false, true), first = GENERATE(false, true);
  model.node("GlobalAveragePool", {"c"}, {"pooled"}).node("Flatten", {"pooled"}, {"f"});
  model.parameter("head.dense.weight", {4, 4}).parameter("head.last.weight", {3, 4}).parameter("head.last.bias", {3});
  Names parameters{"conv.weight", "head.dense.weight", "head.last.weight", "head.last.bias"};
  if (several) model.parameter("head.dense.bias", {4});
  if (several) parameters.emplace_back("head.dense.bias");
  model.node("Gemm", several ? Names{"f", "head.dense.weight", "head.dense.bias"} : Names{"f", "head.dense.weight"},
             {"d"}, {{"transB", 1}});
  trace(model, "head.dense", {"p_head_dense_weight"});
  model.node("Gemm", {"d", "head.last.weight", "head.last.bias"}, {first ? "y" : "z"}, {{"transB", 1}});
  trace(model, "head.last", {"p_head_last_weight", "p_head_last_bias"});
  if (!first) model.node("Relu", {"z"}, {"y"});
  parameters.insert(parameters.end(), {"head.bias", "never.bias", "never.inner.weight"});
  sign(model, parameters);
  const ImportedNetwork network = read_twice(model);
  const bool clear = !several || first;
  Set expected{"conv.weight", "head.dense.weight", "head.last.weight", "head.last.bias"};
  if (several) expected.insert("head.dense.bias");
  if (clear) expected.insert("head.bias");
  CHECK(state_names(network.graph) == expected);
  const std::string unused =
      "the network does not use " +
      std::string(clear ? "2 of PyTorch's parameters (never.bias, never.inner.weight)"
                        : "3 of PyTorch's parameters (head.bias, never.bias, never.inner.weight)");
  Names notes{"head.bias is taken for a second name of head.last.bias: nothing reads it", unused};
  if (!clear) notes.erase(notes.begin());
  CHECK(network.notes == notes);
}

TEST_CASE("Equal tensors of a batch norm and of the calls of another one are separated", "[onnx_separate]") {
  OnnxModel model = convolved();
  model.tensor("a.weight", {4}, kOnes).tensor("a.bias", {4}, kZeros);
  std::string value = "c";
  for (const std::string call : {"a", "b", "b_1"}) {
    model.node("BatchNormalization", {value, "a.weight", "a.bias", "a.bias", "a.weight"}, {call});
    named(model, "/" + call + "/BatchNormalization");
    value = call;
  }
  const ImportedNetwork network = read_twice(model.classify(value, 4));
  CHECK(state_names(network.graph) == Set{"conv.weight", "a.weight", "a.bias", "a.running_mean", "a.running_var",
                                          "a.num_batches_tracked", "b.weight", "b.bias", "b.running_mean",
                                          "b.running_var", "b.num_batches_tracked", "head.weight"});
  CHECK(shared_names(network.graph) ==
        Set{"weight = b.weight", "bias = b.bias", "running_mean = b.running_mean", "running_var = b.running_var"});
}

TEST_CASE("Modules may be tied, and PyTorch has a name for each", "[onnx_separate]") {
  OnnxModel model = convolved();
  model.parameter("b.weight", {4, 4, 1, 1}).parameter("b.bias", {4});
  model.node("Conv", {"c", "b.weight"}, {"a"});
  const bool newer = GENERATE(false, true);
  newer ? trace(model, "a", {"p_b_weight"}) : void(named(model, "/a/Conv"));
  model.node("Conv", {"a", "b.weight", "b.bias"}, {"b"});
  newer ? trace(model, "b", {"p_b_weight", "p_b_bias"}) : void(named(model, "/b/Conv"));
  model.classify("b", 4);
  if (newer) sign(model, {"conv.weight", "a.weight", "b.weight", "b.bias", "head.weight"});
  const ImportedNetwork network = read_twice(model);
  CHECK(trained_names(network.graph) == Set{"conv.weight", "b.weight", "b.bias", "head.weight"});
  CHECK(state_names(network.graph) == Set{"conv.weight", "a.weight", "b.weight", "b.bias", "head.weight"});
  CHECK(shared_names(network.graph) == Set{"weight = b.weight"});
}

TEST_CASE("Copies of a module in a list train their own, though their elements are equal", "[onnx_separate]") {
  OnnxModel model = convolved();
  model.parameter("layers.0.fc.weight", {4, 4, 1, 1});
  model.node("Conv", {"c", "layers.0.fc.weight"}, {"a"});
  named(model, "/layers.0/fc/Conv").node("Conv", {"a", "layers.0.fc.weight"}, {"b"});
  named(model, "/layers.1/fc/Conv").classify("b", 4);
  const ImportedNetwork network = read_twice(model);
  CHECK(trained_names(network.graph) == Set{"conv.weight", "layers.0.fc.weight", "layers.1.fc.weight", "head.weight"});
  CHECK(network.notes == Names{"layers.1.fc.weight is stored together with an equal one; it is trained on its own"});
}

TEST_CASE("A parameter is one in several forms", "[onnx_separate]") {
  OnnxModel model = convolved();
  SECTION("transposed by the exporter") {
    model.parameter("a.weight", {4, 4})
        .tensor<float>("t", {4, 4}, {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15});
    model.node("GlobalAveragePool", {"c"}, {"p"}).node("Flatten", {"p"}, {"f"});
    model.node("MatMul", {"f", "t"}, {"a"}).node("Gemm", {"a", "a.weight"}, {"g"}, {{"transB", 1}});
    sign(model, {"conv.weight", "a.weight", "head.weight"});
    onnx::ValueInfoProto& value = *model.graph().add_value_info();
    value.set_name("t");
    set_only_property(value, PropertyField::value, "pkg.onnxscript.optimizer.folded_from", "['a.weight']");
    model.parameter("head.weight", {3, 4}).node("Gemm", {"g", "head.weight"}, {"y"}, {{"transB", 1}});
    const ImportedNetwork network = read_twice(model);
    CHECK(trained_names(network.graph) == Set{"conv.weight", "a.weight", "head.weight"});
    CHECK(shared_names(network.graph) == Set{"weight = a.weight"});
  }
  SECTION("a learned value and slopes") {
    model.parameter("a.weight", {4, 1, 1}).node("Mul", {"c", "a.weight"}, {"m"});
    model.node("PRelu", {"m", "a.weight"}, {"p"}).classify("p", 4);
    CHECK(trained_names(read_twice(model).graph) == Set{"a.weight", "conv.weight", "head.weight"});
  }
  SECTION("a matrix and its transpose") {
    model.parameter("a.weight", {4, 4}).node("GlobalAveragePool", {"c"}, {"p"}).node("Flatten", {"p"}, {"f"});
    model.node("Gemm", {"f", "a.weight"}, {"a"}, {{"transB", 1}}).node("Gemm", {"a", "a.weight"}, {"g"});
    model.parameter("head.weight", {3, 4}).node("Gemm", {"g", "head.weight"}, {"y"}, {{"transB", 1}});
    CHECK(trained_names(read_twice(model).graph) == Set{"a.weight", "conv.weight", "head.weight"});
  }
}

// Says from which parameter the optimizer computed a stored tensor, and by which rule it changed the last node.
void fold(OnnxModel& model, const std::string& tensor, const std::string& from) {
  onnx::ValueInfoProto& value = *model.graph().add_value_info();
  value.set_name(tensor);
  set_only_property(value, PropertyField::value, "pkg.onnxscript.optimizer.folded_from", "['" + from + "']");
}

void change(OnnxModel& model, const std::string& rule) {
  onnx::NodeProto& node = *model.graph().mutable_node(model.graph().node_size() - 1);
  add_property(node, PropertyField::node, "pkg.onnxscript.rewriter.rule_name", rule);
}

TEST_CASE("Transposed weights of linear layers are the parameters that were traced", "[onnx_separate]") {
  // Blocks a and b, and a second call of a: the exporter transposes a's weights twice, and stores the equal ones of b
  // with the first.
  OnnxModel model = convolved();
  const std::vector<float> matrix{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  model.tensor<float>("val_5", {4, 4}, matrix).tensor<float>("val_9", {4, 4}, matrix);
  model.node("Transpose", {"c"}, {"v"}, {{"perm", Wholes{0, 2, 3, 1}}});
  std::string value = "v";
  for (const auto& [module, tensor] : {std::pair{"a", "val_5"}, {"b", "val_5"}, {"a", "val_9"}}) {
    const std::string next = fmt::format("{}{}", value, module);
    model.node("MatMul", {value, tensor}, {next});
    trace(model, module, {fmt::format("p_{}_weight", module), fmt::format("p_{}_bias", module)});
    onnx::NodeProto& node = *model.graph().mutable_node(model.graph().node_size() - 1);
    set_only_property(node, PropertyField::node, "pkg.torch.onnx.fx_node",
                      fmt::format("%l : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = "
                                  "(%x, %p_{0}_weight, %p_{0}_bias), kwargs = {{}})",
                                  module));
    value = next;
  }
  fold(model, "val_5", "a.weight");
  fold(model, "val_9", "a.weight");
  model.node("Transpose", {value}, {"images"}, {{"perm", Wholes{0, 3, 1, 2}}}).classify("images", 4);
  sign(model, {"conv.weight", "a.weight", "b.weight", "head.weight"});
  const ImportedNetwork network = read_twice(model);
  CHECK(trained_names(network.graph) == Set{"conv.weight", "a.weight", "b.weight", "head.weight"});
  CHECK(shared_names(network.graph) == Set{"weight = a.weight"});
  for (const std::string parameter : {"a.weight", "b.weight"})
    CHECK(network.values.at(parameter) == std::vector<float>{0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15});
}

TEST_CASE("Biases of zeros that the optimizer removed return", "[onnx_separate]") {
  OnnxModel model = convolved();
  model.parameter("mid.weight", {4, 2, 2, 2});
  model.node("ConvTranspose", {"c", "mid.weight"}, {"a"}, {{"group", 2}, {"strides", Wholes{2, 2}}});
  set_only_property(*model.graph().mutable_node(1), PropertyField::node, "pkg.torch.onnx.fx_node",
                    "%a : [num_users=1] = call_function[target=torch.ops.aten.convolution.default](args = (%c, "
                    "%p_mid_weight, %p_mid_bias, [2, 2]), kwargs = {})");
  sign(model, {"conv.weight", "mid.weight", "mid.bias", "head.weight"});
  SECTION("said") {
    change(model, "RemoveOptionalBiasFromConvTranspose");
    model.classify("a", 4);
    const ImportedNetwork network = read_twice(model);
    CHECK(trained_names(network.graph) == Set{"conv.weight", "mid.weight", "mid.bias", "head.weight"});
    CHECK(network.values.at("mid.bias") == kZeros);
  }
  SECTION("not said") {
    CHECK(model.classify("a", 4).error() ==
          "net.onnx: the exporter merged or dropped 1 of PyTorch's parameters (mid.bias): export with optimize=False");
  }
}

TEST_CASE("Weights that contain a batch norm are refused", "[onnx_separate]") {
  OnnxModel model = convolved();
  change(model, "FuseBatchNormIntoConv");
  CHECK(model.classify("c", 4).error() ==
        "net.onnx: node n_c (Conv): the exporter merged a batch norm into it: export with optimize=False");
}

TEST_CASE("A shared last layer cannot be replaced", "[onnx_separate]") {
  OnnxModel model;
  model.parameter("a.weight", {2, 2}).node("GlobalAveragePool", {"x"}, {"p"}).node("Flatten", {"p"}, {"f"});
  model.node("Gemm", {"f", "a.weight"}, {"a"}, {{"transB", 1}}).node("Gemm", {"a", "a.weight"}, {"y"}, {{"transB", 1}});
  CHECK(shared_names(read_twice(model).graph) == Set{"weight = a.weight"});
  const OnnxFile file = model.file();
  const std::string error = test::error_of([&] { read_network(file, neutral_task({4, 4, 2}, 7)); });
  CHECK(error.find("cannot be replaced for another number of classes") != std::string::npos);
}

}  // namespace annulus
