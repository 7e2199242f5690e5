// Parameters that several nodes share, against the same network in which each node has its own.

#include <catch2/catch.hpp>

#include "models/graph/state_dict.h"
#include "models/network/stages.h"
#include "models/rewrites/freeze.h"
#include "models/rewrites/recompute.h"
#include "tests/unit/error_text.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr std::size_t kBatch = 3;

// Appends nodes. The first node of a prefix has its own parameters, the others share them.
class Builder {
 public:
  explicit Builder(const ImageShape& image) : graph(image) {
    value = graph.add("input", ImageInput{std::vector(image.channels, 100.0f), std::vector(image.channels, 60.0f)},
                      {Graph::kImages});
  }

  Builder& add(const std::string& name, const Operation& operation, std::vector<Value> inputs) {
    Node node{.name = name, .operation = operation, .inputs = std::move(inputs)};
    const std::string first = name.substr(0, name.find('/'));
    if (first != name)
      for (const ParameterDeclaration& p : parameters(operation, graph.input_shapes(node, 1)))
        node.shared[p.name] = parameter_name(first, p.name);
    value = graph.add(node);
    return *this;
  }
  Builder& then(const std::string& name, const Operation& operation) { return add(name, operation, {value}); }

  Graph with_loss() {
    then("head", Dense{5});
    graph.add("loss", SoftmaxCrossEntropy{}, {value, Graph::kLabels});
    return graph;
  }

  Graph graph;
  Value value;
};

const Operation kTanh = Activation{Activation::Function::tanh};

const std::map<std::string, Operation> kKinds{
    {"convolution", Convolution{.channels = 8, .kernel = 3, .padding = 1}},
    {"grouped convolution", Convolution{.channels = 8, .kernel = 3, .padding = 1, .groups = 8}},
    {"transposed convolution", TransposedConvolution{.channels = 8, .kernel = 3, .padding = 1}},
    {"dense", Dense{.units = 12}},
    {"linear", Linear{.units = 8}},
    {"batch norm", BatchNorm{}},
    {"layer norm", LayerNorm{.axis = 1}},
    {"group norm", GroupNorm{.groups = 2}},
    {"prelu", PRelu{}},
};

// A network in which a layer follows itself.
Graph repeated(const Operation& operation, std::size_t uses, std::size_t channels = 8) {
  Builder b({8, 8, channels});
  if (channels != 8) b.then("widen", Convolution{.channels = 8, .kernel = 1});
  if (std::holds_alternative<Dense>(operation)) b.then("narrow", Dense{12});
  for (std::size_t use = 0; use < uses; ++use)
    b.then(use == 0 ? "mid" : "mid/" + std::to_string(use), operation).then("act" + std::to_string(use), kTanh);
  return b.with_loss();
}

// The same network in which each node has its own parameters, and the names in `graph` of all of them.
struct Unshared {
  explicit Unshared(const Graph& shared) : graph(shared.without_nodes()) {
    for (Node node : shared.nodes()) {
      for (const ParameterDeclaration& p : shared.all_parameters(node)) {
        names[parameter_name(node.name, p.name)] = parameter_name(node, p.name);
        if (p.role == Role::frozen) node.frozen.push_back(p.name);
      }
      node.shared.clear();
      graph.add(std::move(node));
    }
  }

  Graph graph;
  std::map<std::string, std::string> names;
};

using Values = std::map<std::string, std::vector<float>>;

// A planned network. Parameters with the same one of `names` have the same values.
struct SharedTrial {
  explicit SharedTrial(const Unshared& own) : SharedTrial(own.graph, own.names) {}
  explicit SharedTrial(const Graph& graph, const std::map<std::string, std::string>& names = {})
      : device(test::make_device(1)), model(*device, graph, Mode::training, kBatch), samples(graph, kBatch, 5, 3) {
    for (const Parameter& p : model.parameters().all()) {
      const std::string name = !names.contains(p.name) ? p.name : names.at(p.name);
      auto values = test::random_values(elements(p.spec.shape), std::hash<std::string>()(name));
      for (float& value : values) value = name.ends_with("running_var") ? 1.5f + value : 0.5f * value;
      device->write(values, p.spec, model.parameters().weight(p));
    }
    model.parameters().weights_changed();
  }

  Network& network() { return model.network(Mode::training, kBatch); }

  Values gradients() {
    for (int step = 0; step < 2; ++step) test::run(network(), samples, 1.0f / kBatch);
    return test::gradients(*device, model.parameters());
  }

  std::unique_ptr<Device> device;
  Model model;
  test::Samples samples;
};

// Adds the gradients of the nodes' own parameters.
Values sums_of(const Values& own, const std::map<std::string, std::string>& names) {
  Values sums;
  for (const auto& [name, values] : own) {
    auto& sum = sums.try_emplace(names.at(name), values.size()).first->second;
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  return sums;
}

void check_sums(const Graph& graph) {
  const Unshared unshared(graph);
  SharedTrial shared(graph), own(unshared);
  const Values ours = shared.gradients(), expected = sums_of(own.gradients(), unshared.names);
  CHECK(shared.network().loss().loss == Approx(own.network().loss().loss).epsilon(1e-6));
  REQUIRE(ours.size() == expected.size());
  for (const auto& [name, values] : expected) {
    CAPTURE(name);
    if (name.find("running") != std::string::npos) continue;
    CHECK(test::norm(values) > 0);
    CHECK(test::distance(ours.at(name), values) <= 2e-6 * test::norm(values));
  }
}

std::string own_kind(const std::string& name, const Operation& operation, std::map<std::string, std::string> shared) {
  return test::error_of([&] {
    Builder b({8, 8, 8});
    b.then("mid", Convolution{.channels = 8, .kernel = 3, .padding = 1}).then("norm", BatchNorm{});
    b.graph.add({.name = name, .operation = operation, .inputs = {b.value}, .shared = std::move(shared)});
  });
}

}  // namespace

TEST_CASE("the gradient of a shared parameter is the sum of those of its nodes") {
  for (const auto& [kind, operation] : kKinds)
    for (const std::size_t uses : {2, 3, 4}) {
      CAPTURE(kind, uses);
      check_sums(repeated(operation, uses));
    }
  check_sums(repeated(kKinds.at("convolution"), 2, 3));
}

TEST_CASE("towers share their lowest layers, and learned values") {
  Builder b({8, 8, 8});
  const Value images = b.value;
  std::vector<Value> towers;
  for (const std::string use : {"", "/1", "/2"}) {
    b.add("conv" + use, Convolution{.channels = 8, .kernel = 3}, {images}).then("relu" + use, Relu{});
    towers.push_back(b.value);
  }
  b.add("sum", Add{}, {towers[0], towers[1]}).add("all", Concat{}, {b.value, towers[2]});
  check_sums(b.with_loss());
}

TEST_CASE("layers of several kinds may share a parameter, and others of theirs not") {
  if (test::on_gpu()) return;  // their layouts differ
  Builder b({4, 4, 8});
  b.then("first", Dense{16}).then("act", kTanh);
  b.then("fc", Dense{16}).then("act1", kTanh);
  b.value = b.graph.add(
      {.name = "fc/1", .operation = Linear{.units = 16}, .inputs = {b.value}, .shared = {{"weight", "fc.weight"}}});
  const Value x = b.then("act2", kTanh).value;
  const Value scale = b.graph.add({.name = "fc/2",
                                   .operation = Learned{.shape = {16, 16}, .parameter = "weight"},
                                   .inputs = {},
                                   .shared = {{"weight", "fc.weight"}}});
  b.add("product", MatrixProduct{}, {x, scale}).then("act3", kTanh);
  check_sums(b.with_loss());
}

TEST_CASE("a shared batch norm's statistics change as if its uses followed one another") {
  const float momentum = GENERATE(0.1f, 0.5f, 1.0f, 0.0f);
  const Graph graph = repeated(BatchNorm{.momentum = momentum}, 3);
  SharedTrial shared(graph), own{Unshared(graph)};
  const Values ours = shared.gradients(), each = own.gradients();
  for (const Parameter& p : shared.model.parameters().updated()) {
    if (p.role != Role::statistic) continue;
    CAPTURE(p.name);
    const auto before = test::read(*shared.device, p, shared.model.parameters().weight(p));
    for (std::size_t i = 0; i < before.size(); ++i) {
      double expected = before[i];
      for (const std::string use : {"", "/1", "/2"})
        expected += double{momentum} * (double{each.at("mid" + use + p.name.substr(3))[i]} - expected);
      CHECK(before[i] + p.statistic_momentum * (ours.at(p.name)[i] - before[i]) ==
            Approx(expected).epsilon(1e-5).margin(1e-6));
    }
  }
}

TEST_CASE("gradients of shared parameters are final when they are reported") {
  SharedTrial trial(repeated(kKinds.at("convolution"), 3));
  const DeviceView arena = trial.model.parameters().gradients();
  std::vector<std::vector<float>> reported;
  Network& network = trial.network();
  network.load(trial.samples.images, {trial.samples.labels}, trial.samples.keys);
  network.forward();
  network.backward(1, [&](std::size_t count, const std::optional<Mark>&) {
    reported.push_back(test::floats_of(*trial.device, arena.slice(0, count * sizeof(float))));
  });
  const auto final = test::floats_of(*trial.device, arena);
  REQUIRE(reported.back().size() == final.size());
  for (const auto& values : reported) CHECK(std::equal(values.begin(), values.end(), final.begin()));
}

TEST_CASE("a shared parameter is stored, frozen and numbered once") {
  Builder b({8, 8, 8});
  b.then("conv", Convolution{.channels = 8, .kernel = 1}).then("norm", BatchNorm{}).then("norm/1", BatchNorm{});
  b.then("conv/1", Convolution{.channels = 8, .kernel = 1}).then("conv/2", Convolution{.channels = 8, .kernel = 1});
  const Graph graph = b.with_loss();
  std::vector<std::string> names;
  for (const StateTensor& tensor : state_dict(graph)) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"conv.weight", "conv.bias", "norm.weight", "norm.bias", "norm.running_mean",
                                          "norm.running_var", "norm.num_batches_tracked", "head.weight", "head.bias"});
  CHECK(graph.nodes()[head_of(graph)].name == "head");
  names.clear();
  const auto device = test::make_device(1);
  const Model model(*device, graph, Mode::training, kBatch);
  for (const Parameter& p : model.parameters().all()) names.push_back(p.name);
  CHECK(names == std::vector<std::string>{"control flags", "loss.metrics", "head.weight", "head.bias", "norm.weight",
                                          "norm.bias", "norm.running_mean", "norm.running_var", "conv.weight",
                                          "conv.bias"});
  const Graph frozen = freeze(graph, {"norm", "conv.weight"});
  CHECK(frozen_names(frozen) ==
        std::vector<std::string>{"conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"});
  for (const std::size_t norm : {2, 3}) CHECK(std::get<BatchNorm>(frozen.nodes()[norm].operation).frozen_statistics);
  check_sums(frozen);
}

TEST_CASE("with recomputed blocks, gradients of shared parameters have the same bits") {
  Builder b({8, 8, 8});
  for (const std::string use : {"", "/1", "/2"}) {
    const Value x = b.value;
    b.then("a" + use, Convolution{.channels = 8, .kernel = 3, .padding = 1}).then("tanh" + use, kTanh);
    b.then("b" + use, Convolution{.channels = 8, .kernel = 3, .padding = 1}).add("add" + use, Add{}, {x, b.value});
  }
  const Graph graph = b.with_loss();
  CHECK(SharedTrial(recompute_blocks(graph)).gradients() == SharedTrial(graph).gradients());
}

TEST_CASE("stages do not share parameters") {
  Builder b({8, 8, 8});
  for (const std::string name : {"a", "b", "c", "b/1", "d"}) b.then(name, Linear{8});
  const Graph graph = b.with_loss();
  std::vector<std::string> first;
  for (const std::size_t cut : cut_points(graph)) first.push_back(graph.nodes()[cut].name);
  CHECK(first == std::vector<std::string>{"b", "d", "head", "loss"});
}

TEST_CASE("parameters that cannot be shared are refused") {
  const Convolution same{.channels = 8, .kernel = 3, .padding = 1};
  CHECK(own_kind("x", same, {{"weight", "y.weight"}}) == "layer x: no layer before it has y.weight, which it shares");
  CHECK(own_kind("x", Convolution{.channels = 8, .kernel = 1}, {{"weight", "mid.weight"}}) ==
        "layer x: its weight of 8x8x1x1 cannot be shared with mid.weight of 8x8x3x3");
  CHECK(own_kind("x", BatchNorm{}, {{"bias", "norm.running_mean"}}) ==
        "layer x: its bias cannot be shared with norm.running_mean: only one of them is a running statistic");
  CHECK(own_kind("x", BatchNorm{}, {{"bias", "norm.bias"}, {"weight", "norm.bias"}}) ==
        "layer x: two of its parameters cannot both be norm.bias");
}

}  // namespace annulus
