#include "models/rewrites/fusion.h"

#include <catch2/catch.hpp>

#include "models/rewrites/recompute.h"
#include "models/rewrites/synchronize.h"
#include "models/zoo/zoo.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

const ImageShape kImage{8, 8, 2};

// Builds a graph line by line; the loss comes last.
struct Builder {
  Value add(std::string name, Operation operation, std::vector<Value> inputs) {
    return graph.add(std::move(name), std::move(operation), std::move(inputs));
  }
  Graph done(Value x) {
    add("loss", SoftmaxCrossEntropy{}, {add("dense", Dense{3}, {x}), Graph::kLabels});
    return graph;
  }

  Graph graph{kImage};
  Value input = graph.add("input", ImageInput{{0.5f, 0.5f}, {0.25f, 0.25f}}, {Graph::kImages});
};

const Convolution kConvolution{.channels = 6, .kernel = 3, .padding = 1};

Graph conv_relu_pool() {
  Builder b;
  const Value relu = b.add("relu1", Relu{}, {b.add("conv1", kConvolution, {b.input})});
  return b.done(b.add("pool1", MaxPool{2, 2}, {relu}));
}

Graph conv_pool_relu() {
  Builder b;
  const Value pool = b.add("pool1", MaxPool{3, 2, 1}, {b.add("conv1", kConvolution, {b.input})});
  return b.done(b.add("relu1", Relu{}, {pool}));
}

Graph conv_relu() {
  Builder b;
  return b.done(b.add("relu1", Relu{}, {b.add("conv1", kConvolution, {b.input})}));
}

Graph dense_relu() {
  Builder b;
  return b.done(b.add("relu1", Relu{}, {b.add("hidden", Dense{9}, {b.input})}));
}

// The pool must not take the ReLU: the convolution reads it too. But the first convolution may.
Graph relu_with_two_readers() {
  Builder b;
  const Value relu = b.add("relu1", Relu{}, {b.add("conv1", kConvolution, {b.input})});
  const Value pool = b.add("pool1", MaxPool{3, 1, 1}, {relu});
  return b.done(b.add("add", Add{}, {pool, b.add("conv2", kConvolution, {relu})}));
}

// Nor does the convolution absorb the ReLU here: its other reader needs the negative values.
Graph convolution_with_two_readers() {
  Builder b;
  const Value conv = b.add("conv1", kConvolution, {b.input});
  const Value relu = b.add("relu1", Relu{}, {conv});
  return b.done(b.add("add", Add{}, {relu, conv}));
}

Graph residual_blocks() {
  Builder b;
  Value x = b.add("stem.relu", Relu{}, {b.add("stem", kConvolution, {b.input})});
  for (const std::string block : {"block1", "block2"}) {
    const Value shortcut = x;
    x = b.add(block + ".norm1", BatchNorm{}, {b.add(block + ".conv1", kConvolution, {x})});
    x = b.add(block + ".relu1", Relu{}, {x});
    x = b.add(block + ".relu2", Relu{}, {b.add(block + ".conv2", kConvolution, {x})});
    x = b.add(block + ".add", Add{}, {x, shortcut});
    x = b.add(block + ".relu3", Relu{}, {x});
  }
  return b.done(b.add("pool", MaxPool{2, 2}, {x}));
}

// An addition after a batch norm becomes part of it, whichever input the norm is, and so does the ReLU after it.
Graph norm_add_relu() {
  Builder b;
  const Value shortcut = b.add("stem", kConvolution, {b.input});
  Value x = b.add("norm1", BatchNorm{}, {b.add("conv1", kConvolution, {shortcut})});
  x = b.add("relu1", Relu{}, {b.add("add1", Add{}, {x, shortcut})});
  Value y = b.add("norm2", BatchNorm{}, {b.add("conv2", kConvolution, {x})});
  return b.done(b.add("relu2", Relu{}, {b.add("add2", Add{}, {x, y})}));
}

// But not if another node reads the normalized values, if they are added to themselves, or if the ReLU comes first.
Graph norm_not_add() {
  Builder b;
  Value x = b.add("norm1", BatchNorm{}, {b.add("conv1", kConvolution, {b.input})});
  x = b.add("add1", Add{}, {x, x});
  Value y = b.add("norm2", BatchNorm{}, {b.add("conv2", kConvolution, {x})});
  y = b.add("add2", Add{}, {b.add("relu2", Relu{}, {y}), x});
  x = b.add("norm3", BatchNorm{}, {y});
  const Value sum = b.add("add3", Add{}, {x, y});
  return b.done(b.add("add4", Add{}, {sum, x}));
}

// Several in a row; and ReLUs that do not directly follow the node they read, which stay.
Graph chains() {
  Builder b;
  const Value first = b.add("conv1", kConvolution, {b.input});
  const Value second = b.add("conv2", kConvolution, {b.input});
  const Value relu1 = b.add("relu1", Relu{}, {first});
  const Value relu2 = b.add("relu2", Relu{}, {b.add("relu2a", Relu{}, {second})});
  Value x = b.add("pool1", MaxPool{2, 2}, {b.add("add", Add{}, {relu1, relu2})});
  x = b.add("relu3", Relu{}, {b.add("pool2", MaxPool{2, 2}, {b.add("relu4", Relu{}, {x})})});
  return b.done(x);
}

// Nodes before a concatenation, a dropout or an average are fused as elsewhere; those themselves are not.
Graph inception() {
  Builder b;
  const auto unit = [&](const std::string& name, Value x) {
    return b.add(name + ".relu", Relu{}, {b.add(name + ".norm", BatchNorm{}, {b.add(name, kConvolution, {x})})});
  };
  const Value stem = unit("stem", b.input);
  const Value left = unit("left", stem), right = unit("right2", unit("right1", stem));
  const Value pooled = unit("pooled", b.add("average", AveragePool{3, 1, 1}, {stem}));
  const Value largest = b.add("largest", MaxPool{3, 1, 1}, {stem});
  const Value norm = b.add("joined.norm", BatchNorm{}, {b.add("joined", kConvolution, {stem})});
  const Value joined = b.add("joined.relu", Relu{}, {b.add("joined.add", Add{}, {norm, stem})});
  Value x = b.add("concat", Concat{}, {left, right, pooled, largest, joined, left});
  x = b.add("relu", Relu{}, {b.add("dropout", Dropout{0.25f}, {x, Graph::kSampleKeys})});
  return b.done(b.add("means", AdaptiveAveragePool{2}, {x}));
}

struct Named {
  const char* name;
  Graph (*make)();
  std::vector<std::string> nodes;  // remaining between the input and the last dense layer, in order
};

const std::vector<Named> kGraphs{
    {"conv relu pool", conv_relu_pool, {"conv1", "pool1"}},
    {"conv pool relu", conv_pool_relu, {"conv1", "pool1"}},
    {"conv relu", conv_relu, {"conv1"}},
    {"dense relu", dense_relu, {"hidden"}},
    {"relu with two readers", relu_with_two_readers, {"conv1", "pool1", "conv2", "add"}},
    {"convolution with two readers", convolution_with_two_readers, {"conv1", "relu1", "add"}},
    {"residual blocks",
     residual_blocks,
     {"stem", "block1.conv1", "block1.norm1", "block1.conv2", "block1.add", "block1.relu3", "block2.conv1",
      "block2.norm1", "block2.conv2", "block2.add", "pool"}},
    {"norm add relu", norm_add_relu, {"stem", "conv1", "norm1", "conv2", "norm2"}},
    {"norm not add", norm_not_add, {"conv1", "norm1", "add1", "conv2", "norm2", "add2", "norm3", "add3", "add4"}},
    {"chains", chains, {"conv1", "conv2", "relu1", "relu2a", "relu2", "add", "pool1", "pool2"}},
    {"inception",
     inception,
     {"stem", "stem.norm", "left", "left.norm", "right1", "right1.norm", "right2", "right2.norm", "average", "pooled",
      "pooled.norm", "largest", "joined", "joined.norm", "concat", "dropout", "relu", "means"}},
};

bool has_relu(const Graph& graph, const std::string& name) {
  for (const Node& node : graph.nodes())
    if (node.name == name) {
      if (const auto* conv = std::get_if<Convolution>(&node.operation)) return conv->relu;
      if (const auto* pool = std::get_if<MaxPool>(&node.operation)) return pool->relu;
      if (const auto* dense = std::get_if<Dense>(&node.operation)) return dense->relu;
      if (const auto* norm = std::get_if<BatchNorm>(&node.operation)) return norm->relu;
    }
  return false;
}

}  // namespace

TEST_CASE("fusion keeps a batch norm synchronized") {
  const Graph fused = fuse(synchronize_batch_norms(norm_add_relu()));
  std::size_t norms = 0;
  for (const Node& node : fused.nodes())
    if (const auto* norm = std::get_if<BatchNorm>(&node.operation)) {
      CHECK((norm->synchronized && norm->add && norm->relu));
      ++norms;
    }
  CHECK(norms == 2);
  CHECK_THROWS_WITH(synchronize_batch_norms(dense_relu()), Catch::Contains("no batch norm"));
}

TEST_CASE("the nodes after fusion and their names") {
  for (const Named& named : kGraphs) {
    CAPTURE(named.name);
    std::vector<std::string> names;
    const Graph fused = fuse(named.make());
    for (const Node& node : fused.nodes()) names.push_back(node.name);
    auto expected = named.nodes;
    expected.insert(expected.begin(), "input");
    expected.insert(expected.end(), {"dense", "loss"});
    CHECK(names == expected);
    CHECK(fuse(fused).description() == fused.description());
    CHECK_FALSE(has_relu(fused, "dense"));
  }
  CHECK(has_relu(fuse(conv_relu_pool()), "pool1"));
  CHECK_FALSE(has_relu(fuse(conv_relu_pool()), "conv1"));
  CHECK(has_relu(fuse(conv_pool_relu()), "pool1"));
  CHECK(has_relu(fuse(conv_relu()), "conv1"));
  CHECK(has_relu(fuse(dense_relu()), "hidden"));
  CHECK(has_relu(fuse(relu_with_two_readers()), "conv1"));
  CHECK_FALSE(has_relu(fuse(relu_with_two_readers()), "pool1"));
  CHECK_FALSE(has_relu(fuse(relu_with_two_readers()), "conv2"));
  CHECK_FALSE(has_relu(fuse(convolution_with_two_readers()), "conv1"));
  CHECK(has_relu(fuse(norm_add_relu()), "norm1"));
  CHECK(has_relu(fuse(norm_add_relu()), "norm2"));
  CHECK(has_relu(fuse(norm_not_add()), "norm2"));
  for (const char* norm : {"stem.norm", "left.norm", "right2.norm", "pooled.norm"})
    CHECK(has_relu(fuse(inception()), norm));
  CHECK_FALSE(has_relu(fuse(norm_not_add()), "norm3"));
}

TEST_CASE("fusion keeps a batch norm's settings") {
  Builder b;
  const BatchNorm special{.epsilon = 0.125f, .initial_scale = 0};
  const Value norm = b.add("norm", special, {b.input});
  const Graph fused = fuse(b.done(b.add("relu", Relu{}, {b.add("add", Add{}, {norm, b.input})})));
  const auto& both = std::get<BatchNorm>(fused.nodes()[1].operation);
  CHECK(both.epsilon == 0.125f);
  CHECK(both.initial_scale == 0);
  CHECK(both.add);
  CHECK(both.relu);
}

TEST_CASE("fusion keeps a convolution's settings") {
  Builder b;
  const Convolution special{.channels = 5, .kernel = 5, .stride = 2, .padding = 1, .bias = false};
  const Graph fused = fuse(b.done(b.add("relu", Relu{}, {b.add("conv", special, {b.input})})));
  const auto& conv = std::get<Convolution>(fused.nodes()[1].operation);
  CHECK(conv.channels == 5);
  CHECK(conv.kernel == 5);
  CHECK(conv.stride == 2);
  CHECK(conv.padding == 1);
  CHECK_FALSE(conv.bias);
  CHECK(conv.relu);
}

TEST_CASE("nodes that a device may fuse with the next one") {
  const Graph graph = make_model("gpt-tiny", token_task({8, 50}));
  const auto names = [](const Graph& of) {
    const auto pairs = find_pairs(of);
    std::vector<std::string> found;
    for (std::size_t i = 0; i < pairs.size(); ++i)
      if (pairs[i] && (of.nodes()[i].name == "wte" || of.nodes()[i].name.starts_with("h.1.")))
        found.push_back(of.nodes()[i].name);
    return found;
  };
  const std::vector<std::string> expected{"wte",      "h.1.ln_1",     "h.1.attn.c_attn", "h.1.attn",
                                          "h.1.ln_2", "h.1.mlp.c_fc", "h.1.mlp.act",     "h.1.add2"};
  CHECK(names(graph) == expected);
  CHECK(names(recompute_blocks(graph)) == expected);
  Graph partly = graph.without_nodes();
  for (Node node : graph.nodes()) {
    node.recomputed = node.name == "h.1.mlp.act";
    partly.add(std::move(node));
  }
  std::vector<std::string> expected_partly = expected;
  std::erase(expected_partly, "h.1.mlp.c_fc");
  std::erase(expected_partly, "h.1.mlp.act");
  CHECK(names(partly) == expected_partly);
}

TEST_CASE("nodes that a device may fuse with one of several readers") {
  const Graph graph = zoo_entry("resnet20").make(zoo_entry("resnet20").task());
  using Pair = std::pair<std::string, std::string>;
  const auto names = [](const Graph& unfused) {
    const Graph of = fuse(unfused);
    const auto shared = find_shared_inputs(of);
    std::vector<Pair> found;
    for (std::size_t i = 0; i < shared.size(); ++i)
      if (shared[i]) found.emplace_back(of.nodes()[*shared[i]].name, of.nodes()[i].name);
    return found;
  };
  CHECK(names(graph) == std::vector<Pair>{{"bn1", "layer1.0.conv1"},
                                          {"layer1.0.bn2", "layer1.1.conv1"},
                                          {"layer1.1.bn2", "layer1.2.conv1"},
                                          {"layer1.2.bn2", "layer2.0.downsample.0"},
                                          {"layer1.2.bn2", "layer2.0.conv1"},
                                          {"layer2.0.bn2", "layer2.1.conv1"},
                                          {"layer2.1.bn2", "layer2.2.conv1"},
                                          {"layer2.2.bn2", "layer3.0.downsample.0"},
                                          {"layer2.2.bn2", "layer3.0.conv1"},
                                          {"layer3.0.bn2", "layer3.1.conv1"},
                                          {"layer3.1.bn2", "layer3.2.conv1"}});
  CHECK(names(recompute_blocks(graph)) == std::vector<Pair>{{"layer3.1.bn2", "layer3.2.conv1"}});
}

TEST_CASE("the fused graph has the same loss and gradients") {
  const Named named = GENERATE(from_range(kGraphs));
  const std::size_t batch = GENERATE(1, 3);
  const int threads = GENERATE(1, 2);
  CAPTURE(named.name, batch, threads);
  const auto device = test::make_device(threads);
  const Graph graph = named.make();
  const Graph fused = fuse(graph);
  test::PlainNetwork one(*device, graph, batch), other(*device, fused, batch);
  const test::Samples samples(graph, batch, 3, 11);
  one.parameters.initialize(8);
  const auto& from = one.parameters.all();
  const auto& to = other.parameters.all();
  REQUIRE(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    REQUIRE(from[i].name == to[i].name);
    const auto values = test::read(*device, from[i], one.parameters.weight(from[i]));
    device->write(values, to[i].spec, other.parameters.weight(to[i]));
  }
  for (test::PlainNetwork* plain : {&one, &other}) test::run(plain->network, samples, 0.5f);
  CHECK(other.network.loss().loss == Approx(one.network.loss().loss).epsilon(1e-6));
  CHECK(other.network.loss().measure == one.network.loss().measure);
  const auto expected = test::gradients(*device, one.parameters);
  const auto ours = test::gradients(*device, other.parameters);
  REQUIRE(ours.size() == expected.size());
  for (const auto& [name, values] : expected) {
    CAPTURE(name);
    // The gradient of a bias before a batch norm is 0 except for rounding, of some hundred numbers up to about 1.
    CHECK(test::distance(ours.at(name), values) <= 1e-5 * (0.1 + test::norm(values)));
    CHECK(test::norm(values) > 0);
  }
}

}  // namespace annulus
