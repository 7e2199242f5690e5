#include "models/rewrites/freeze.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "models/rewrites/fusion.h"
#include "models/zoo/zoo.h"
#include "src/step/optimizer.h"
#include "tests/unit/error_text.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

using Names = std::vector<std::string>;

const Task kTask = neutral_task({8, 8, 3}, 4);

Graph frozen(const std::string& model, const Names& patterns) {
  return freeze(make_model(model, kTask), patterns);
}

std::string refusal(const std::string& model, const Names& patterns) {
  return test::error_of([&] { frozen(model, patterns); });
}

// Three steps with weight decay and a moving average.
struct Trained {
  explicit Trained(const Graph& graph) : model(*device, graph, Mode::training, 4) {
    model.parameters().initialize(3);
    optimizer.begin_average();
    const test::Samples samples(model.graph(), 4, 4, 5);
    for (int step = 0; step < 3; ++step) {
      test::run(model.network(Mode::training, 4), samples, 0.25f);
      optimizer.begin_step();
      optimizer.update({0, model.parameters().gradients().bytes / sizeof(float)});
    }
  }

  std::unique_ptr<Device> device = test::make_device(1);
  Model model;
  Optimizer optimizer{*device, model.parameters(), Sgd{.momentum = 0.9f, .weight_decay = 0.1f}, 0.1f, 0.5};
};

}  // namespace

TEST_CASE("a pattern matches parameters, layers and groups of layers", "[freeze]") {
  for (const char* pattern : {"layer1", "layer1.*", "layer1.0", "layer?", "*.bn1", "*bias", "layer1.0.bn1.bias", "*"})
    CHECK(matches(pattern, "layer1.0.bn1.bias"));
  for (const char* pattern : {"layer", "layer1.", "bn1", "layer1.1*", "*.weight", "0", ""})
    CHECK_FALSE(matches(pattern, "layer1.0.bn1.bias"));
}

TEST_CASE("patterns freeze parameters, and batch norms with their statistics", "[freeze]") {
  const Graph graph = frozen("resnet20", {"bn1", "layer1.0.conv?", "fc.bias", "layer3.2.bn2.running_*"});
  CHECK(frozen_names(graph) == Names{"fc.bias", "layer3.2.bn2.running_mean", "layer3.2.bn2.running_var",
                                     "layer1.0.conv2.weight", "layer1.0.conv1.weight", "bn1.weight", "bn1.bias",
                                     "bn1.running_mean", "bn1.running_var"});
  for (const Graph& each : {graph, fuse(graph)}) {
    CHECK(frozen_names(each) == frozen_names(graph));
    for (const Node& node : each.nodes())
      if (const auto* norm = std::get_if<BatchNorm>(&node.operation))
        CHECK(norm->frozen_statistics == (node.name == "bn1" || node.name == "layer3.2.bn2"));
  }
}

TEST_CASE("only gradients above the lowest trained layer are required", "[freeze]") {
  const Graph graph = frozen("cnn", {"conv1", "conv2.bias"});
  const auto required = graph.required_gradients();
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const std::string& name = graph.nodes()[i].name;
    CAPTURE(name);
    CHECK(required[Graph::output(i)] == (name != "input" && !name.starts_with("conv1") && name != "pool1"));
  }
}

TEST_CASE("frozen parameters have no gradients and do not change, and others begin as without them", "[freeze]") {
  const auto [model, patterns] = GENERATE(table<std::string, Names>({{"cnn", {"conv1", "fc1.bias"}},
                                                                     {"cnn", {"conv2", "fc2"}},
                                                                     {"resnet20", {"layer1", "layer2.*.bn1"}},
                                                                     {"resnet20", {"*running_*"}},
                                                                     {"resnet20", {"*.weight"}}}));
  CAPTURE(model, patterns);
  const Trained trained(frozen(model, patterns));
  Model untrained(*trained.device, make_model(model, kTask), Mode::training, 4);
  untrained.parameters().initialize(3);
  const Parameters& parameters = trained.model.parameters();
  std::size_t count = 0;
  for (std::size_t i = 0; i < parameters.all().size(); ++i) {
    const Parameter &p = parameters.all()[i], &before = untrained.parameters().all()[i];
    CAPTURE(p.name);
    REQUIRE(p.name == before.name);
    if (p.role == Role::metric) continue;
    const bool is_frozen = std::ranges::any_of(patterns, [&](const auto& pattern) { return matches(pattern, p.name); });
    CHECK((p.role == Role::frozen) == is_frozen);
    CHECK((p.offset >= parameters.gradients().bytes) == is_frozen);
    const auto start = test::read(*trained.device, before, untrained.parameters().weight(before));
    CHECK((test::read(*trained.device, p, parameters.weight(p)) == start) == is_frozen);
    if (is_frozen)
      count += start.size();
    else
      CHECK(test::read(*trained.device, p, trained.optimizer.average().slice(p.offset, p.bytes)) != start);
  }
  CHECK(count > 0);
  CHECK(parameters.count_frozen() == count);
  CHECK(trained.optimizer.state(0).bytes == parameters.gradients().bytes);
  CHECK(trained.optimizer.average().bytes == parameters.gradients().bytes);
}

TEST_CASE("without batch norm, frozen layers do not change the other gradients", "[freeze]") {
  const auto gradients_of = [](const Graph& graph) {
    const auto device = test::make_device(1);
    Model model(*device, graph, Mode::training, 4);
    model.parameters().initialize(3);
    test::run(model.network(Mode::training, 4), test::Samples(graph, 4, 4, 5), 0.25f);
    return test::gradients(*device, model.parameters());
  };
  const auto all = gradients_of(make_model("cnn", kTask));
  for (const Names& patterns : {Names{"conv1"}, {"conv1", "conv2"}, {"conv2", "fc1"}, {"fc2.bias", "conv1.bias"}}) {
    CAPTURE(patterns);
    for (const auto& [name, gradient] : gradients_of(frozen("cnn", patterns))) {
      CAPTURE(name);
      CHECK(test::distance(gradient, all.at(name)) <= 1e-6 * test::norm(gradient));
    }
  }
}

TEST_CASE("patterns that freeze nothing or everything are refused", "[freeze]") {
  CHECK(refusal("cnn", {"conv1", "features"}) ==
        "--freeze: no parameter matches features; the network's are those of conv1, conv2, fc1, fc2");
  CHECK(refusal("resnet20", {"layer4"}) ==
        "--freeze: no parameter matches layer4; the network's are those of conv1, "
        "bn1, layer1, layer2, layer3, fc");
  CHECK(refusal("cnn", {"*"}) == "--freeze: all parameters are frozen, so there is nothing to train");
  CHECK(refusal("resnet20", {"bn1.running_mean"}) ==
        "--freeze: only one of running_mean and running_var of bn1 is frozen: freeze both or none");
}

}  // namespace annulus
