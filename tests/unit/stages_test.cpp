#include "models/network/stages.h"

#include <catch2/catch.hpp>
#include <map>

#include "models/network/model.h"
#include "models/rewrites/fusion.h"
#include "models/zoo/zoo.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

const Task kTask = neutral_task({32, 32, 3}, 10);
constexpr std::size_t kStageBatch = 3;

std::vector<std::string> cut_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const std::size_t cut : cut_points(graph)) names.push_back(graph.nodes()[cut].name);
  return names;
}

using Gradients = std::map<std::string, std::vector<float>>;

struct Result {
  double loss = 0;
  Gradients gradients;
};

Result compute(Model& model, Network& network) {
  Result result;
  if (network.computes_loss()) result.loss = network.loss().loss;
  result.gradients = test::gradients(model.device(), model.parameters());
  return result;
}

// The stages of a network one after the other in one process: forward from the first to the last, backward from the
// last to the first.
Result run_stages(Device& device, const Graph& graph, const std::vector<Range>& stages, const test::Samples& samples) {
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::byte> passing;
  const auto send = [&](DeviceView from) { passing = test::bytes_of(device, from); };
  const auto receive = [&](DeviceView to) {
    REQUIRE(to.bytes == passing.size());
    device.upload(passing, to);
  };
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    models.push_back(std::make_unique<Model>(
        device, graph, Mode::training, kStageBatch, Parameters::Allocate{}, [] {}, Parameters::Allocate{},
        stages[stage]));
    models.back()->parameters().initialize(3);
    StageLinks links;
    if (stage > 0) links.receive_input = receive, links.send_input_gradient = send;
    if (stage + 1 < stages.size()) links.send_output = send, links.receive_output_gradient = receive;
    models.back()->link(links);
  }
  for (const auto& model : models) {
    Network& network = model->network(Mode::training, kStageBatch);
    network.load(samples.images, {samples.labels}, samples.keys);
    network.forward();
  }
  Result all;
  for (std::size_t stage = stages.size(); stage-- > 0;) {
    Network& network = models[stage]->network(Mode::training, kStageBatch);
    network.backward(1.0f / kStageBatch);
    Result own = compute(*models[stage], network);
    all.loss += own.loss;
    all.gradients.merge(own.gradients);
  }
  return all;
}

}  // namespace

TEST_CASE("networks are cut where one value crosses") {
  CHECK(cut_names(make_model("mlp", kTask)).size() > 2);
  // Not within a block, whose shortcut crosses; nor before the first layer, as nothing is trained there.
  const Graph resnet = planned_graph(make_model("resnet20", kTask));
  const auto names = cut_names(resnet);
  CHECK(names.front() == "bn1");
  CHECK(std::ranges::find(names, "layer2.1.conv1") != names.end());
  CHECK(std::ranges::find(names, "layer2.1.conv2") == names.end());
  const auto segments = cut_everywhere(resnet);
  CHECK(segments.size() == names.size() + 1);
  CHECK(segments.back().end == resnet.nodes().size());
}

TEST_CASE("the stages of a network have its losses and gradients to the last bit") {
  const auto device = test::make_device(1);
  for (const std::string name : {"mlp", "lenet", "cnn", "resnet20"}) {
    CAPTURE(name);
    const Graph graph = planned_graph(make_model(name, kTask));
    const test::Samples samples(graph, kStageBatch, 10, 5);
    Model whole(*device, graph, Mode::training, kStageBatch);
    whole.parameters().initialize(3);
    Network& network = whole.network(Mode::training, kStageBatch);
    test::run(network, samples, 1.0f / kStageBatch);
    const Result expected = compute(whole, network);

    const std::vector<Range> everywhere = cut_everywhere(graph);
    const std::size_t middle = everywhere[everywhere.size() / 2].begin;
    for (const auto& stages : {everywhere, std::vector<Range>{{0, middle}, {middle, graph.nodes().size()}}}) {
      CAPTURE(stages.size());
      const Result found = run_stages(*device, graph, stages, samples);
      CHECK(found.loss == expected.loss);
      REQUIRE(found.gradients.size() == expected.gradients.size());
      for (const auto& [parameter, gradient] : expected.gradients) {
        INFO(parameter);
        CHECK(found.gradients.at(parameter) == gradient);
      }
    }
  }
}

TEST_CASE("networks in different slots keep their activations") {
  const auto device = test::make_device(1);
  const Graph graph = planned_graph(make_model("lenet", kTask));
  Model model(*device, graph, Mode::training, kStageBatch);
  model.parameters().initialize(3);
  Network &one = model.network(Mode::training, kStageBatch), &other = model.network(Mode::training, kStageBatch, 1);
  const test::Samples samples(graph, kStageBatch, 10, 5), others(graph, kStageBatch, 10, 6);
  test::run(one, samples, 1);
  const Gradients expected = test::gradients(*device, model.parameters());
  one.load(samples.images, {samples.labels});
  one.forward();
  test::run(other, others, 1);
  one.backward(1);
  CHECK(test::gradients(*device, model.parameters()) == expected);
}

}  // namespace annulus
