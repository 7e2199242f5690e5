// The zoo's graphs: published sizes and accepted images.

#include "models/zoo/zoo.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "models/graph/cost.h"
#include "models/graph/state_dict.h"
#include "models/rewrites/fusion.h"
#include "tests/unit/error_text.h"

namespace annulus {
namespace {

struct Published {
  const char* model;
  std::size_t parameters;
  std::uint64_t products;  // multiply-adds of convolutions, dense layers and attention
};

// torchvision's models, their parameters and their layers' multiply-adds counted (0.14, the two before vit_s_16 0.29;
// inception_v3 without AuxLogits).
const Published kPublished[] = {{"resnet18", 11'689'512, 1'814'073'344},
                                {"resnet34", 21'797'672, 3'663'761'408},
                                {"resnet50", 25'557'032, 4'089'184'256},
                                {"resnet101", 44'549'160, 7'801'405'440},
                                {"resnet152", 60'192'808, 11'513'626'624},
                                {"alexnet", 61'100'840, 714'188'480},
                                {"vgg16", 138'357'544, 15'470'264'320},
                                {"inception_v3", 23'834'568, 5'713'216'096},
                                {"densenet121", 7'978'856, 2'834'161'664},
                                {"mobilenet_v3_large", 5'483'032, 216'589'760},
                                {"vit_s_16", 22'050'664, 4'598'882'304},
                                {"vit_b_16", 86'567'656, 17'563'828'224},
                                {"lenet", 61'706, 416'520},
                                {"mlp", 235'146, 234'752}};

Graph default_graph(const std::string& model) {
  const ZooEntry& entry = zoo_entry(model);
  return make_model(model, entry.task());
}

Task square(std::size_t side, std::size_t classes = 10) {
  return neutral_task({side, side, 3}, classes);
}

std::vector<ParameterDeclaration> declared(const Graph& graph, const Node& node) {
  return parameters(node.operation, graph.input_shapes(node, 1));
}

const Node& node_named(const Graph& graph, const std::string& name) {
  for (const Node& node : graph.nodes())
    if (node.name == name) return node;
  FAIL("there is no layer " << name);
  throw;
}

}  // namespace

TEST_CASE("A GPT's name may have another size") {
  const ZooEntry entry = zoo_entry("gpt-tiny --width 12 --layers 1 --context 5 --heads 2");
  CHECK(entry.name == "gpt-tiny --layers 1 --width 12 --context 5");
  CHECK(entry.description == "a GPT of 1 blocks, 2 heads, 12 wide");
  const Graph graph = make_model(entry.name, token_task({4, 7}));
  const std::size_t block = 4 * 12 + (12 + 1) * 36 + (12 + 1) * 12 + (12 + 1) * 48 + (48 + 1) * 12;
  CHECK(total_cost(graph).parameters == 7 * 12 + 5 * 12 + block + 2 * 12);
  CHECK(zoo_entry("gpt2 --layers 12 --context 64").name == "gpt2 --context 64");
  CHECK(zoo_entry("gpt2 --layers 12 --context 64").task().tokens.length == 64);
  const auto error = [](const std::string& model) {
    return test::error_of([&] { make_model(model, token_task({6, 7})); });
  };
  CHECK(error("gpt-tiny --context 5") ==
        "gpt-tiny --context 5: windows of 6 tokens are longer than --context 5: choose another --length or --context");
  CHECK(error("gpt-tiny --heads 5") ==
        "gpt-tiny: a width of 64 is not divisible by 5 heads: choose another --width or --heads");
  CHECK(error("mlp --layers 2") == "mlp has a fixed size: --layers, --width, --heads and --context are for GPTs");
  for (const std::string setting : {"--layers 0", "--depth 2", "--layers ", "--layers 2x", "--layers 1048577"})
    CHECK(error("gpt2 " + setting) ==
          "gpt2: '" + setting + "' is not a size such as --layers 4 (others: --width, --heads, --context)");
}

TEST_CASE("models have the published numbers of parameters and operations") {
  for (const Published& published : kPublished) {
    CAPTURE(published.model);
    const Graph graph = default_graph(published.model);
    const Cost cost = total_cost(graph);
    CHECK(cost.parameters == published.parameters);
    CHECK(cost.forward_flops == 2 * published.products);
    CHECK(cost.training_flops == 6 * published.products);
    const Cost fused = total_cost(fuse(graph));
    CHECK(fused.parameters == cost.parameters);
    CHECK(fused.forward_flops == cost.forward_flops);
    const bool fuses = !std::string(published.model).starts_with("vit");
    CHECK((fused.activation_bytes < cost.activation_bytes) == fuses);
  }
  CHECK(total_cost(make_model("resnet20", square(32))).parameters == 272'474);
  CHECK(total_cost(make_model("resnet56", square(32))).parameters == 855'770);
  CHECK(total_cost(make_model("vit_tiny", square(32))).parameters == 2'693'578);
}

TEST_CASE("activation bytes count every value but the inputs") {
  Graph graph({4, 5, 3});
  const Value x = graph.add("input", ImageInput{{0, 0, 0}, {1, 1, 1}}, {Graph::kImages});
  const Value y = graph.add("dense", Dense{7}, {graph.add("pool", MaxPool{2, 2}, {x})});
  graph.add("loss", SoftmaxCrossEntropy{}, {y, Graph::kLabels});
  const auto costs = node_costs(graph);
  REQUIRE(costs.size() == 4);
  CHECK(costs[0].activation_bytes == 4 * 60);
  CHECK(costs[1].activation_bytes == 4 * 12);
  CHECK(costs[2].activation_bytes == 4 * 7);
  CHECK(costs[2].parameters == 12 * 7 + 7);
  CHECK(total_cost(graph).activation_bytes == 4 * (60 + 12 + 7 + 3));
  CHECK(total_cost(graph).gradient_bytes() == 4 * (12 * 7 + 7));
}

TEST_CASE("every model accepts other image shapes and numbers of classes") {
  for (const ZooEntry& entry : zoo()) {
    if (entry.reads_tokens()) continue;
    CAPTURE(entry.name);
    const ImageShape image{entry.image.height + 13, entry.image.width + 40, 2};
    const Graph graph = make_model(entry.name, neutral_task(image, 7));
    const auto shapes = graph.shapes(3);
    CHECK(shapes[graph.values() - 2] == Shape{3, 7});
    CHECK(graph.nodes().front().name == "input");
    CHECK(graph.nodes().back().name == "loss");
  }
}

TEST_CASE("GPTs have the published numbers of parameters, and their names") {
  CHECK(total_cost(default_graph("gpt2")).parameters == 124'439'808);
  CHECK(total_cost(default_graph("gpt2-medium")).parameters == 354'823'168);
  // Of each block 12 x width^2 weights and 13 x width biases and norms; both embeddings, and the last norm.
  CHECK(total_cost(default_graph("nanogpt-cpu")).parameters ==
        4 * (12 * 128 * 128 + 13 * 128) + (257 + 64) * 128 + 2 * 128);
  // Every product of a token with the weights of a block, and with the vocabulary; of attention, half of all pairs.
  constexpr std::uint64_t kLength = 1024, kWidth = 768, kBlocks = 12;
  CHECK(total_cost(default_graph("gpt2")).forward_flops ==
        2 * kLength * (12 * kWidth * kWidth * kBlocks + 50257 * kWidth + kLength * kWidth * kBlocks));
  std::vector<std::string> names;
  for (const StateTensor& tensor : state_dict(make_model("gpt-tiny", token_task({8, 100}))))
    names.push_back(tensor.name + " " + to_string(tensor.shape));
  REQUIRE(names.size() == 2 + 2 * 12 + 2);
  CHECK(names.front() == "wte.weight 100x64");
  CHECK(names[1] == "wpe.weight 8x64");
  CHECK(names[2] == "h.0.ln_1.weight 64");
  CHECK(names[4] == "h.0.attn.c_attn.weight 64x192");
  CHECK(names.back() == "ln_f.bias 64");
}

TEST_CASE("images and text need models of their own") {
  CHECK_THROWS_WITH(make_model("gpt2", square(32)), Catch::Contains("gpt2 is for text, and the data is images"));
  CHECK_THROWS_WITH(make_model("lenet", token_task({8, 100})),
                    Catch::Contains("lenet is for images, and the data is text"));
}

TEST_CASE("the error for too small images names the layer and the minimum size") {
  struct Least {
    const char* model;
    std::size_t side;
    const char* layer;  // for which the next smaller image is too small
  };
  for (const Least& least :
       {Least{"inception_v3", 75, "Mixed_7a"}, Least{"alexnet", 63, "features.12"}, Least{"vgg16", 32, "features.30"},
        Least{"lenet", 12, "pool2"}, Least{"cnn", 4, "pool2"}, Least{"densenet121", 29, "features.transition3.pool"},
        Least{"vit_s_16", 16, "conv_proj"}, Least{"vit_tiny", 4, "conv_proj"}}) {
    CAPTURE(least.model);
    CHECK_NOTHROW(make_model(least.model, square(least.side)));
    const std::string side = std::to_string(least.side);
    CHECK_THROWS_WITH(make_model(least.model, square(least.side - 1)),
                      Catch::Contains(least.layer) && Catch::Contains(": " + side + "x" + side + ")"));
    CHECK_THROWS_WITH(make_model(least.model, neutral_task({300, least.side - 1, 3}, 10)),
                      Catch::Contains(": " + side + "x" + side + ")"));
  }
  for (const char* model : {"mlp", "resnet20", "resnet50", "mobilenet_v3_large"})
    CHECK_NOTHROW(make_model(model, square(1)));
  // Other errors are not attributed to the size.
  CHECK_THROWS_WITH(make_model("vgg16", Task{{32, 32, 3}, {0}, {1}, 10}),
                    Catch::Contains("3 channels") && !Catch::Contains("minimum"));
  CHECK_THROWS_WITH(make_model("vgg", square(32)), Catch::Contains("vgg16") && Catch::Contains("inception_v3"));
}

TEST_CASE("initial weights have the published std") {
  const auto stddev = [](const std::string& model, const std::string& layer) {
    const Graph graph = default_graph(model);
    return declared(graph, node_named(graph, layer))[0].stddev;
  };
  CHECK(stddev("resnet50", "layer2.0.conv2") == Approx(std::sqrt(2.0 / (128 * 9))));
  CHECK(stddev("resnet50", "layer2.0.conv3") == Approx(std::sqrt(2.0 / 512)));
  CHECK(stddev("resnet50", "fc") == 0.01f);
  CHECK(stddev("resnet20", "fc") == Approx(std::sqrt(1.0 / 64)));
  CHECK(stddev("vgg16", "features.12") == Approx(std::sqrt(2.0 / (256 * 9))));
  CHECK(stddev("vgg16", "classifier.6") == 0.01f);
  CHECK(stddev("inception_v3", "Mixed_6b.branch7x7_2.conv") == 0.1f);
  CHECK(stddev("densenet121", "features.denseblock2.denselayer1.conv1") == Approx(std::sqrt(2.0 / 128)));
  CHECK(stddev("densenet121", "classifier") == Approx(std::sqrt(1.0 / (3 * 1024))));
  CHECK(stddev("mobilenet_v3_large", "features.13.block.1.0") == Approx(std::sqrt(2.0 / (672 * 25))));
  CHECK(stddev("mobilenet_v3_large", "features.13.block.2.fc1") == Approx(std::sqrt(2.0 / 168)));
  CHECK(stddev("mobilenet_v3_large", "classifier.3") == 0.01f);
  CHECK(stddev("vit_b_16", "conv_proj") == Approx(std::sqrt(1.0 / 768)));
  CHECK(stddev("vit_b_16", "encoder.pos_embedding") == 0.02f);
  const std::string layer = "encoder.layers.encoder_layer_3.";
  CHECK(stddev("vit_b_16", layer + "self_attention.in_proj_") == Approx(std::sqrt(2.0 / (4 * 768))));
  CHECK(stddev("vit_b_16", layer + "self_attention.out_proj") == Approx(std::sqrt(1.0 / (3 * 768))));
  CHECK(stddev("vit_b_16", layer + "mlp.3") == Approx(std::sqrt(2.0 / (5 * 768))));
  CHECK(stddev("lenet", "conv2") == Approx(std::sqrt(1.0 / (6 * 25))));
  CHECK(stddev("lenet", "fc1") == Approx(std::sqrt(1.0 / 400)));
}

TEST_CASE("airbench94's layers and initial weights are the paper's") {
  const Graph graph = make_model("airbench94", square(32));
  CHECK(total_cost(graph).parameters ==
        24 * 13 + 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256) + 2 * 64 + 4 * 256 + 256 * 10);
  const auto shape = [&](const std::string& name) {
    for (std::size_t node = 0; node < graph.nodes().size(); ++node)
      if (graph.nodes()[node].name == name) return graph.shape(Graph::output(node), 1);
    FAIL("there is no layer " << name);
    throw;
  };
  CHECK(shape("whiten") == Shape{1, 24, 31, 31});
  CHECK(shape("block1.gelu2") == Shape{1, 64, 15, 15});
  CHECK(shape("block3.gelu2") == Shape{1, 256, 3, 3});
  CHECK(shape("scale") == Shape{1, 10});
  const auto weights = graph.parameters(node_named(graph, "block2.conv1")).front();
  CHECK(weights.begins_as_copy);
  CHECK(weights.stddev == Approx(std::sqrt(1.0 / (3 * 9 * 64))));
  const auto norm = graph.parameters(node_named(graph, "block2.norm1"));
  CHECK(norm[0].role == Role::frozen);
  CHECK(norm[1].role == Role::offset);
  CHECK(norm[2].statistic_momentum == 0.4f);
}

TEST_CASE("residual blocks can be initialized to their shortcut") {
  for (const auto& [model, last, blocks] : {std::tuple{"resnet18", "bn2", 8u}, std::tuple{"resnet50", "bn3", 16u}}) {
    Task task = square(64);
    for (const bool zero : {false, true}) {
      task.zero_init_last_norm = zero;
      unsigned zeros = 0;
      const Graph graph = fuse(make_model(model, task));  // fusion must preserve it
      for (const Node& node : graph.nodes())
        if (std::holds_alternative<BatchNorm>(node.operation) && declared(graph, node)[0].initial == 0) {
          CHECK(node.name.ends_with(last));
          ++zeros;
        }
      CHECK(zeros == (zero ? blocks : 0));
    }
  }
}

TEST_CASE("Inception's batch norm epsilon and the cost of its concatenations") {
  const Graph graph = fuse(default_graph("inception_v3"));
  std::size_t norms = 0, concatenations = 0;
  for (const Node& node : graph.nodes()) {
    if (const auto* norm = std::get_if<BatchNorm>(&node.operation)) {
      CHECK(norm->epsilon == 1e-3f);
      ++norms;
    }
    CHECK(!std::holds_alternative<Relu>(node.operation));  // each is fused with the node before it
    if (!std::holds_alternative<Concat>(node.operation)) continue;
    ++concatenations;
    for (const Value input : node.inputs) CHECK(!std::holds_alternative<Concat>(graph.node(input).operation));
  }
  CHECK(norms == 94);
  CHECK(concatenations == 11);
}

TEST_CASE("MobileNetV3's norms have torchvision's epsilon and momentum") {
  const Graph graph = default_graph("mobilenet_v3_large");
  std::size_t norms = 0;
  for (const Node& node : graph.nodes())
    if (const auto* norm = std::get_if<BatchNorm>(&node.operation)) {
      CHECK(norm->epsilon == 1e-3f);
      CHECK(norm->momentum == 0.01f);
      ++norms;
    }
  CHECK(norms == 46);
}

TEST_CASE("a model's dropouts draw different masks") {
  for (const char* model : {"alexnet", "vgg16"}) {
    std::vector<std::uint32_t> numbers;
    const Graph graph = fuse(make_model(model, square(64)));
    for (const Node& node : graph.nodes())
      if (const auto* dropout = std::get_if<Dropout>(&node.operation)) numbers.push_back(dropout->number);
    CHECK(numbers == std::vector<std::uint32_t>{0, 1});
  }
}

}  // namespace annulus
