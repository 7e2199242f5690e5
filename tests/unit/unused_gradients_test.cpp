#include "models/rewrites/unused_gradients.h"

#include <catch2/catch.hpp>

#include "models/network/model.h"
#include "models/zoo/zoo.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

bool makes_input_gradient(const Operation& operation) {
  if (const auto* convolution = std::get_if<Convolution>(&operation)) return convolution->input_gradient;
  if (const auto* dense = std::get_if<Dense>(&operation)) return dense->input_gradient;
  return true;
}

std::vector<std::string> sparing(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes())
    if (!makes_input_gradient(node.operation)) names.push_back(node.name);
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("only every model's first layer has no input gradient") {
  for (const ZooEntry& entry : zoo()) {
    if (entry.reads_tokens()) continue;  // its first layer has no input gradient anyway
    CAPTURE(entry.name);
    const Graph graph = entry.make(entry.task());
    CHECK(sparing(graph).empty());
    const Graph spared = prune_unused_gradients(graph);
    CHECK(sparing(spared) == Names{graph.nodes()[1].name});
    CHECK(spared.description() == graph.description());
  }
}

TEST_CASE("input gradients are pruned up to the first parameters, on each path from the images") {
  Graph graph({8, 8, 2});
  const Value image = graph.add("input", ImageInput{{0.5f, 0.5f}, {0.5f, 0.5f}}, {Graph::kImages});
  const Convolution same{.channels = 2, .kernel = 3, .padding = 1};
  const Value left = graph.add("left", same, {graph.add("relu", Relu{}, {image})});
  const Value right = graph.add("right2", same, {graph.add("right1", same, {image})});
  const Value sum = graph.add("sum", Add{}, {graph.add("sum with image", Add{}, {image, left}), right});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("dense", Dense{3}, {sum}), Graph::kLabels});
  CHECK(sparing(prune_unused_gradients(graph)) == Names{"left", "right1"});
}

TEST_CASE("a model's first layer is planned without an input gradient") {
  const auto device = test::make_device(1);
  const Task task = neutral_task({28, 28, 1}, 10);
  CHECK(sparing(Model(*device, make_model("lenet", task), Mode::training, 2).graph()) == Names{"conv1"});
  CHECK(sparing(Model(*device, make_model("mlp", task), Mode::training, 2).graph()) == Names{"fc1"});
}

}  // namespace annulus
