#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "models/network/decoding.h"
#include "src/onnx/causality.h"
#include "src/onnx/properties.h"
#include "tests/unit/onnx_model.h"

namespace annulus {
namespace {

using test::Names;
using test::OnnxModel;
using test::read_twice;
using test::shared_names;
using test::state_names;
using test::Wholes;

// A network that reads tokens; e is embedded.
OnnxModel embedding(std::int64_t length, std::int64_t batch = -1) {
  OnnxModel model({batch, length});
  model.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::INT64);
  model.parameter("wte.weight", {5, 4}).node("Gather", {"wte.weight", "x"}, {"e"});
  return model;
}

OnnxModel& predict(OnnxModel& model, const std::string& from, const std::string& table) {
  return model.node("Transpose", {table}, {"t"}, {{"perm", Wholes{1, 0}}}).node("MatMul", {from, "t"}, {"y"});
}

// Adds positions.
OnnxModel& positions(OnnxModel& model) {
  model.tensor<std::int64_t>("zero", {}, {0}).tensor<std::int64_t>("one", {}, {1});
  return model.node("Shape", {"x"}, {"shape"})
      .node("Gather", {"shape", "one"}, {"length"})
      .node("Range", {"zero", "length", "one"}, {"positions"})
      .parameter("wpe.weight", {8, 4})
      .node("Gather", {"wpe.weight", "positions"}, {"p"})
      .node("Add", {"e", "p"}, {"x1"});
}

Names operations(const Graph& graph) {
  Names names;
  for (const Node& node : graph.nodes()) names.emplace_back(name(node.operation));
  return names;
}

ImportedNetwork read(const OnnxModel& model, const TokenShape& tokens) {
  return read_network(model.file(), token_task(tokens));
}

std::string error(const OnnxModel& model, const TokenShape& tokens) {
  return test::error_of([&] { read(model, tokens); });
}

}  // namespace

TEST_CASE("a network that reads tokens becomes a language model") {
  const std::int64_t batch = GENERATE(-1, 1, 3), length = GENERATE(-1, 6);
  OnnxModel model = embedding(length, batch);
  positions(model);
  SECTION("with a tied head") {
    predict(model, "x1", "wte.weight");
    const ImportedNetwork network = read_twice(model);
    CHECK(operations(network.graph) == Names{"token embedding", "position embedding", "language-model head"});
    CHECK(shared_names(network.graph) == std::set<std::string>{"weight = wte.weight"});
    CHECK(state_names(network.graph) == std::set<std::string>{"wte.weight", "wpe.weight"});
    CHECK(network.values.size() == 2);
  }
  SECTION("with a head tied to a transpose that the older exporter stored") {
    std::vector<float> transpose;
    for (std::size_t column = 0; column < 4; ++column)
      for (std::size_t row = 0; row < 5; ++row) transpose.push_back(static_cast<float>(row * 4 + column));
    model.tensor<float>("onnx::MatMul_12", {4, 5}, transpose).node("MatMul", {"x1", "onnx::MatMul_12"}, {"y"});
    const ImportedNetwork network = read_twice(model);
    CHECK(shared_names(network.graph) == std::set<std::string>{"weight = wte.weight"});
  }
  SECTION("with a head of its own") {
    predict(model.parameter("head.weight", {7, 4}), "x1", "head.weight");
    const ImportedNetwork network = read_twice(model);
    CHECK(state_names(network.graph) == std::set<std::string>{"wte.weight", "wpe.weight", "head.weight"});
    CHECK(network.graph.tokens().vocabulary == 5);
  }
  SECTION("with a head that has a bias") {
    predict(model.parameter("head.bias", {5}), "x1", "wte.weight").graph().mutable_node(7)->set_output(0, "products");
    const ImportedNetwork network = read_twice(model.node("Add", {"products", "head.bias"}, {"y"}));
    CHECK(std::get<LanguageModelHead>(network.graph.nodes().back().operation).bias);
    CHECK(state_names(network.graph) == std::set<std::string>{"wte.weight", "wpe.weight", "head.bias"});
  }
  SECTION("with the table's first rows as positions") {
    OnnxModel sliced = embedding(4, batch);
    sliced.tensor<std::int64_t>("begin", {1}, {0}).tensor<std::int64_t>("end", {1}, {4});
    sliced.parameter("wpe.weight", {8, 4}).node("Slice", {"wpe.weight", "begin", "end"}, {"p"});
    sliced.node("Add", {"p", "e"}, {"x1"});
    CHECK(operations(predict(sliced, "x1", "wte.weight").read().graph)[1] == "position embedding");
  }
}

TEST_CASE("a task for an ONNX file of tokens has the largest windows that the file allows") {
  OnnxModel fixed = embedding(6), open = embedding(-1), limited = embedding(-1);
  CHECK(exported_task(predict(fixed, "e", "wte.weight").file()).tokens.length == 6);
  CHECK(exported_task(predict(open, "e", "wte.weight").file()).tokens.length == 256);
  const Task task = exported_task(predict(positions(limited), "x1", "wte.weight").file());
  CHECK(task.tokens.length == 8);
  CHECK(task.tokens.vocabulary == 5);
}

TEST_CASE("a language model's windows and tokens must fit the ONNX file") {
  OnnxModel model = embedding(6);
  predict(positions(model), "x1", "wte.weight");
  CHECK(read(model, {6, 5}).notes.empty());
  CHECK(read(model, {6, 3}).notes == Names{"the data uses 3 of the network's 5 tokens"});
  CHECK(error(model, {6, 7}) ==
        "net.onnx: it has a vocabulary of 5 tokens, and the data 7: import the text with its tokenizer, or export it "
        "with a vocabulary of 7");
  CHECK(error(model, {4, 5}) ==
        "net.onnx: it was exported for windows of 6 tokens, not 4: give --length 6, or export it with an open length");
  OnnxModel open = embedding(-1);
  predict(positions(open), "x1", "wte.weight");
  CHECK(read(open, {8, 5}).notes.empty());
  CHECK(error(open, {9, 5}) ==
        "net.onnx: node n_p (Gather): there is no element 8 among 8 (windows have 9 tokens: see "
        "--length)");
  const OnnxFile file = model.file();
  CHECK(test::error_of([&] {
          read_network(file, neutral_task({4, 4, 1}, 5));
        }) == "net.onnx: it reads tokens, and the data is images");
  CHECK(test::error_of([] {
          read_network(test::convolved().node("Relu", {"c"}, {"y"}).file(), token_task({6, 5}));
        }) == "net.onnx: it reads images, and the data is text");
}

TEST_CASE("a network whose predictions depend on later tokens is refused") {
  OnnxModel causal = embedding(10), mean = embedding(10), prefix = embedding(10), last = embedding(10);
  const auto check = [](OnnxModel& model, const std::string& from) {
    predict(model, from, "wte.weight");
    return test::error_of([&] { expect_causal(model.file(), model.read()); });
  };
  const std::string expected =
      "net.onnx: its predictions depend on later tokens: train a masked language model (BERT) with --loss masked; "
      "others must be causal";
  predict(causal, "e", "wte.weight");
  CHECK_NOTHROW(expect_causal(causal.file(), causal.read()));
  mean.node("ReduceMean", {"e"}, {"m"}, {{"axes", Wholes{1}}}).node("Add", {"e", "m"}, {"x1"});
  CHECK(check(mean, "x1") == expected);
  for (auto& [model, places] : {std::pair<OnnxModel&, Wholes>{prefix, {1, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
                                std::pair<OnnxModel&, Wholes>{last, {0, 1, 2, 3, 4, 5, 6, 7, 9, 9}}}) {
    model.tensor<std::int64_t>("places", {10}, places).node("Gather", {"e", "places"}, {"g"}, {{"axis", 1}});
    CHECK(check(model, "g") == expected);
  }
}

TEST_CASE("a network of tokens with an output {batch, classes} reads texts with labels") {
  OnnxModel model = embedding(6);
  model.node("ReduceMean", {"e"}, {"m"}, {{"axes", Wholes{1}}, {"keepdims", 0}});
  predict(model.parameter("head.weight", {3, 4}), "m", "head.weight");
  const Task task = exported_task(model.file());
  CHECK((task.labels == LabelKind::one_class && task.classes == 3));
  CHECK((task.tokens.length == 6 && task.tokens.vocabulary == 5 && task.tokens.prediction == Prediction::label));
  const ImportedNetwork network = read_twice(model);
  CHECK(operations(network.graph) == Names{"token embedding", "mean", "dense", "softmax cross-entropy"});
  CHECK(network.graph.shape(Graph::kWindow, 2) == Shape{2, 1, 6});
  Task other = task;
  other.classes = 7;
  CHECK(read_network(model.file(), other).notes == Names{"the last layer is replaced: it has 3 classes, the data 7"});
  CHECK(test::error_of([&] {
          read_network(model.file(), token_task({6, 5}));
        }) ==
        "net.onnx: output y: it is 1x3 for one window, but must be logits {batch, length, vocabulary}: a language "
        "model's, without a loss (windows have 6 tokens: see --length)");
}

TEST_CASE("a network with attention to later tokens learns masked tokens") {
  OnnxModel model = embedding(6);
  model.tensor<std::int64_t>("reversed", {6}, {5, 4, 3, 2, 1, 0});
  model.node("Gather", {"e", "reversed"}, {"g"}, {{"axis", 1}});
  const Graph graph =
      read_network(predict(model, "g", "wte.weight").file(), token_task({6, 5, Prediction::masked})).graph;
  CHECK(graph.shape(Graph::kWindow, 2) == Shape{2, 2, 6});
  CHECK(graph.tokens().prediction == Prediction::masked);
  CHECK_NOTHROW(expect_causal(model.file(), read(model, {6, 5, Prediction::masked})));
}

TEST_CASE("a table with other gradients in PyTorch is refused") {
  OnnxModel model = embedding(6);
  const std::string call =
      GENERATE("(%p_weight, %x)", "(%p_weight, %x, -1)", "(%p_weight, %x, 2)", "(%p_weight, %x, -1, True)");
  set_only_property(
      *model.graph().mutable_node(0), PropertyField::node, "pkg.torch.onnx.fx_node",
      "%e : [num_users=1] = call_function[target=torch.ops.aten.embedding.default](args = " + call + ", kwargs = {})");
  Names expected;
  if (call.ends_with(" 2)"))
    expected = {
        "node n_e (Gather): its padding_idx=2 leaves that token's row untrained, which is not supported: export it "
        "with "
        "padding_idx=None"};
  if (call.ends_with("True)")) expected = {"node n_e (Gather): its scale_grad_by_freq is not supported"};
  CHECK(predict(model, "e", "wte.weight").problems() == expected);
}

TEST_CASE("a table with a single row of zeros is refused if the file does not name padding_idx") {
  OnnxModel model({-1, 6});
  model.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::INT64);
  const bool two = GENERATE(false, true);
  model.tensor<float>("wte.weight", {4, 2}, {1, 2, 0, 0, 3, 4, two ? 0.0f : 1.0f, 0});
  model.node("Gather", {"wte.weight", "x"}, {"e"});
  Names expected{
      "node n_e (Gather): row 1 of its table is zeros, as padding_idx=1 leaves it, which this exporter does not write: "
      "export it with padding_idx=None and dynamo=True"};
  if (two) expected.clear();
  CHECK(predict(model, "e", "wte.weight").problems() == expected);
}

TEST_CASE("positions that a file without marks stores as constants are refused") {
  OnnxModel model = embedding(6);
  model.tensor<float>("onnx::Add_9", {6, 4}, std::vector<float>(24, 0.5f)).node("Add", {"e", "onnx::Add_9"}, {"x1"});
  CHECK(predict(model, "x1", "wte.weight").problems() ==
        Names{"node n_x1 (Add): it adds constants to embedded tokens, which may come from trained positions: export it "
              "with dynamo=True"});
}

TEST_CASE("a row that every token of every window has is read once") {
  OnnxModel model = embedding(3, 2);
  model.parameter("types.weight", {2, 4}).tensor<std::int64_t>("types", {2, 3}, {0, 1, 1, 0, 1, 1});
  model.node("Gather", {"types.weight", "types"}, {"t1"}).node("Add", {"e", "t1"}, {"x1"});
  const ImportedNetwork network = read_twice(predict(model, "x1", "wte.weight"));
  CHECK(state_names(network.graph) == std::set<std::string>{"wte.weight", "types.weight"});
}

TEST_CASE("text is generated by networks that compute token by token") {
  OnnxModel by_token = embedding(6), together = embedding(6);
  predict(positions(by_token), "x1", "wte.weight");
  const Graph decoding = decoding_graph(by_token.read().graph, 8);
  CHECK(decoding.shape(decoding.values() - 1, 1) == Shape{1, 1, 5});
  together.node("ReduceMean", {"e"}, {"m"}, {{"axes", Wholes{1}}}).node("Add", {"e", "m"}, {"x1"});
  predict(together, "x1", "wte.weight");
  CHECK(test::error_of([&] { decoding_graph(together.read().graph, 8); }) ==
        "layer n_m: it cannot be computed token by token: generate needs fused attention and a position embedding");
}

TEST_CASE("masks and token types are fixed to what full windows have") {
  const std::int64_t batch = GENERATE(-1, 1, 3);
  const auto type = GENERATE(onnx::TensorProto::INT64, onnx::TensorProto::BOOL);
  OnnxModel model = embedding(6, batch), plain = embedding(6, batch);
  const auto add_input = [&](const std::string& name, onnx::TensorProto::DataType of) {
    onnx::ValueInfoProto& input = *model.graph().add_input();
    input = model.graph().input(0);
    input.set_name(name);
    input.mutable_type()->mutable_tensor_type()->set_elem_type(of);
  };
  add_input("attention_mask", type);
  add_input("token_type_ids", onnx::TensorProto::INT64);
  std::vector<std::int64_t> causal(36);
  for (std::size_t i = 0; i < 36; ++i) causal[i] = i % 6 <= i / 6;
  for (OnnxModel* both : {&model, &plain})
    both->tensor<std::int64_t>("causal", {6, 6}, causal).node("Cast", {"causal"}, {"c"}, {{"to", 9}});
  model.tensor<std::int64_t>("axis", {1}, {1}).parameter("types.weight", {2, 4});
  model.node("Cast", {"attention_mask"}, {"m"}, {{"to", 9}}).node("Unsqueeze", {"m", "axis"}, {"m1"});
  model.node("And", {"c", "m1"}, {"kept"}).node("Gather", {"types.weight", "token_type_ids"}, {"t1"});
  model.node("Add", {"e", "t1"}, {"h"});
  plain.node("Identity", {"e"}, {"h"}).node("Identity", {"c"}, {"kept"});
  const bool chosen = GENERATE(false, true);
  for (OnnxModel* both : {&model, &plain}) {
    both->tensor<float>("onnx::low", {1}, {std::numeric_limits<float>::lowest()}).tensor<float>("onnx::zero", {1}, {0});
    both->node("Transpose", {"h"}, {"ht"}, {{"perm", Wholes{0, 2, 1}}}).node("MatMul", {"h", "ht"}, {"scores"});
    if (chosen)
      both->node("Where", {"kept", "scores", "onnx::low"}, {"s"});
    else
      both->node("Where", {"kept", "onnx::zero", "onnx::low"}, {"added"}).node("Add", {"scores", "added"}, {"s"});
    both->node("Softmax", {"s"}, {"w"}, {{"axis", -1}}).node("MatMul", {"w", "h"}, {"x1"});
    predict(*both, "x1", "wte.weight");
  }
  const ImportedNetwork network = read_twice(model);
  REQUIRE(network.notes.size() >= 2);
  CHECK(Names(network.notes.begin(), network.notes.begin() + 2) ==
        Names{"its input attention_mask is 1 for every token: windows are full",
              "its input token_type_ids is 0 for every token: windows are full"});
  CHECK(state_names(network.graph) == std::set<std::string>{"wte.weight", "types.weight"});
  Names expected = operations(plain.read().graph), found = operations(network.graph);
  CHECK(std::ranges::count(found, "expand") == 0);
  const auto after = [](const Names& names) { return Names(std::ranges::find(names, "matrix product"), names.end()); };
  REQUIRE(after(expected).size() > 3);
  CHECK(after(found) == after(expected));
  CHECK_NOTHROW(expect_causal(model.file(), network));
  model.graph().mutable_input(2)->set_name("position_ids");
  model.graph().mutable_node(5)->set_input(1, "position_ids");
  CHECK(test::error_of([&] { model.file(); }) ==
        "net.onnx: it has 3 inputs, but networks are supported that read images or tokens alone, or attention_mask and "
        "token_type_ids beside tokens: wrap the network in a module whose forward() takes one");
}

TEST_CASE("masks of texts with labels, and of other sizes, are refused") {
  OnnxModel model = embedding(6);
  *model.graph().add_input() = model.graph().input(0);
  model.graph().mutable_input(1)->set_name("attention_mask");
  model.node("Cast", {"attention_mask"}, {"m"}, {{"to", 1}}).tensor<std::int64_t>("axis", {1}, {2});
  model.node("Unsqueeze", {"m", "axis"}, {"m1"}).node("Mul", {"e", "m1"}, {"masked"});
  model.node("ReduceMean", {"masked"}, {"r"}, {{"axes", Wholes{1}}, {"keepdims", 0}});
  predict(model.parameter("head.weight", {3, 4}), "r", "head.weight");
  CHECK(model.problems() ==
        Names{"net.onnx: its input attention_mask hides padding, which data files do not record for texts with labels: "
              "export it with tokens alone, for single texts of the full length"});
  OnnxModel large = embedding(1 << 20, 1 << 20);
  *large.graph().add_input() = large.graph().input(0);
  large.graph().mutable_input(1)->set_name("attention_mask");
  CHECK(test::error_of([&] { predict(large, "e", "wte.weight").read(); }) ==
        "net.onnx: its input attention_mask of 1048576 windows of 1048576 tokens is too large");
  auto& shape = *model.graph().mutable_input(1)->mutable_type()->mutable_tensor_type();
  shape.mutable_shape()->mutable_dim(1)->set_dim_value(7);
  CHECK(test::error_of([&] { model.file(); }) ==
        "net.onnx: its input attention_mask is 0x7, but the tokens are 0x6, with 0 for open: export both with the same "
        "sizes");
  shape.set_elem_type(onnx::TensorProto::FLOAT);
  CHECK(test::error_of([&] { model.file(); }) ==
        "net.onnx: its input attention_mask must be whole numbers {batch, length} beside tokens: export it without "
        "this input");
}

TEST_CASE("what no language model computes is refused") {
  OnnxModel activated = embedding(6), padded = embedding(6), flat = embedding(6), pooled = embedding(6);
  predict(activated, "e", "wte.weight").graph().mutable_node(2)->set_output(0, "z");
  CHECK(activated.node("Tanh", {"z"}, {"y"}).problems() ==
        Names{"output y: its logits must come from a linear layer, such as nn.Linear(width, vocabulary)"});
  pooled.node("ReduceMean", {"e"}, {"m"}, {{"axes", Wholes{1}}, {"keepdims", 1}});
  CHECK(predict(pooled, "m", "wte.weight").problems() ==
        Names{"output y: it is 1x1x5 for one window, but must be logits {batch, length, vocabulary}: a language "
              "model's, without a loss"});
  padded.tensor<std::int64_t>("pad", {}, {0}).node("Equal", {"x", "pad"}, {"y"});
  CHECK(padded.problems() ==
        Names{"node n_y (Equal): it computes with tokens, which only embeddings may read: masks for "
              "padded texts are not supported"});
  flat.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim();
  CHECK(test::error_of([&] { predict(flat, "e", "wte.weight").file(); }) ==
        "net.onnx: its input x has 3 dimensions, but tokens have 2: batch, length");
}

}  // namespace annulus
