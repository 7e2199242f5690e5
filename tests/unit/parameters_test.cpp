#include "models/parameters/parameters.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "models/zoo/zoo.h"
#include "tests/unit/small_network.h"

namespace annulus {
namespace {

const Task kTask{{28, 28, 1}, {0.5f}, {0.5f}, 10};

std::map<std::string, std::vector<float>> values(Device& device, const Parameters& parameters) {
  std::map<std::string, std::vector<float>> all;
  for (const Parameter& p : parameters.all()) all[p.name] = test::read(device, p, parameters.weight(p));
  return all;
}

std::map<std::string, std::vector<float>> initial_values(Model& model, std::uint64_t seed) {
  model.parameters().initialize(seed);
  return values(model.device(), model.parameters());
}

}  // namespace

TEST_CASE("parameters are in the order of backward, each in its own cache lines") {
  const std::string name = GENERATE("mlp", "lenet", "cnn", "resnet20");
  const auto device = make_device("cpu", 1);
  Model model(*device, make_model(name, kTask), Mode::training, 4);
  const Parameters& parameters = model.parameters();
  const auto& all = parameters.all();
  REQUIRE(all.size() > 3);

  std::size_t end = 0;
  std::set<std::string> names;
  for (const Parameter& p : all) {
    CAPTURE(name, p.name);
    CHECK(p.offset == end);
    CHECK(p.offset % 64 == 0);
    CHECK(p.bytes % 64 == 0);
    CHECK(p.bytes >= p.spec.layout->bytes());
    CHECK(p.bytes < p.spec.layout->bytes() + 64);
    CHECK(p.spec.layout->bytes() >= elements(p.spec.shape) * sizeof(float));
    CHECK(names.insert(p.name).second);
    end = p.offset + p.bytes;
  }
  for (const DeviceView arena : {parameters.weights(), parameters.gradients()}) {
    CHECK(arena.bytes == end);
    CHECK(reinterpret_cast<std::uintptr_t>(arena.address) % 64 == 0);
  }

  CHECK(parameters.control_flags().name == "control flags");
  CHECK(parameters.control_flags().offset == 0);
  CHECK(elements(parameters.control_flags().spec.shape) == Parameters::kControlFlags);
  CHECK(parameters.metrics()->name == "loss.metrics");
  CHECK(parameters.metrics()->role == Role::metric);

  // From the last node to the first; within a node in the order of declaration.
  std::size_t index = 1, nodes_end = parameters.control_flags().bytes;
  for (std::size_t node = model.graph().nodes().size(); node-- > 0;) {
    const Node& n = model.graph().nodes()[node];
    const auto declared = annulus::parameters(n.operation, model.graph().input_shapes(n, 1));
    const auto own = parameters.of_node(node);
    REQUIRE(own.size() == declared.size());
    for (std::size_t i = 0; i < own.size(); ++i, ++index) {
      CHECK(own[i] == &all[index]);
      CHECK(own[i]->name == n.name + "." + declared[i].name);
      CHECK(own[i]->role == declared[i].role);
      CHECK(own[i]->spec.shape == declared[i].shape);
      nodes_end = own[i]->offset + own[i]->bytes;
    }
    CHECK(parameters.gradients_of_node(node).end == nodes_end);
  }
  CHECK(index == all.size());
}

TEST_CASE("published models have the published number of parameters") {
  const auto device = make_device("cpu", 1);
  const auto count = [&](const std::string& name) {
    return Model(*device, make_model(name, kTask), Mode::training, 1).parameters().count();
  };
  CHECK(count("lenet") == 61'706);
  CHECK(count("mlp") == 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10);
  CHECK(count("cnn") == 32 * 9 + 32 + 64 * 32 * 9 + 64 + 3136 * 128 + 128 + 1280 + 10);
}

TEST_CASE("initial values are determined by the seed") {
  const auto device = make_device("cpu", 1);
  Model model(*device, make_model("lenet", kTask), Mode::training, 2);
  const auto first = initial_values(model, 1);
  const auto other = initial_values(model, 2);
  CHECK(initial_values(model, 1) == first);
  for (const Parameter& p : model.parameters().all()) {
    CAPTURE(p.name);
    CHECK((first.at(p.name) != other.at(p.name)) == (p.role == Role::weight));
  }
  // Two parameters of one run differ too.
  const auto& a = first.at("fc2.weight");
  const auto& b = first.at("fc1.weight");
  std::size_t equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    equal += std::abs(a[i] / std::sqrt(2.0f / 120) - b[i] / std::sqrt(2.0f / 400)) < 1e-6f;
  CHECK(equal < 5);
}

TEST_CASE("a convolution can begin as a copy of the input's first channels") {
  const auto device = make_device("cpu", 1);
  for (const auto& [outputs, kernel] : {std::pair{5u, 3u}, {2u, 2u}}) {
    Graph graph({6, 6, 3});
    Value x = graph.add("input", ImageInput{{0, 0, 0}, {1, 1, 1}}, {Graph::kImages});
    x = graph.add("conv", Convolution{.channels = outputs, .kernel = kernel, .begins_as_copy = true}, {x});
    graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("fc", Dense{2}, {x}), Graph::kLabels});
    Model model(*device, graph, Mode::training, 1);
    const auto weights = initial_values(model, 1).at("conv.weight");
    const std::size_t area = kernel * kernel, middle = kernel / 2 * (kernel + 1);
    for (std::size_t output = 0; output < outputs; ++output)
      for (std::size_t i = 0; i < 3 * area; ++i) {
        const float weight = weights[output * 3 * area + i];
        if (output < 3)
          CHECK(weight == (i == output * area + middle ? 1.0f : 0.0f));
        else
          CHECK(weight != 0);
      }
  }
}

TEST_CASE("initial values do not depend on layout, batch size, mode or threads") {
  const std::string name = GENERATE("lenet", "resnet20");
  const auto device = make_device("cpu", 1);
  Model reference(*device, make_model(name, kTask), Mode::training, 1);
  const auto expected = initial_values(reference, 5);
  struct {
    int threads;
    Mode mode;
    std::size_t batch;
  } others[] = {{1, Mode::training, 64}, {2, Mode::training, 3}, {2, Mode::inference, 16}};
  for (const auto& [threads, mode, batch] : others) {
    const auto other = make_device("cpu", threads);
    Model model(*other, make_model(name, kTask), mode, batch);
    CHECK(initial_values(model, 5) == expected);
  }
}

TEST_CASE("weights have He initialization, other parameters are constant") {
  const auto device = make_device("cpu", 1);
  Model model(*device, make_model("resnet20", kTask), Mode::training, 1);
  model.parameters().initialize(9);
  std::size_t large = 0;
  for (const Parameter& p : model.parameters().all()) {
    CAPTURE(p.name);
    const auto all = test::read(*device, p, model.parameters().weight(p));
    if (p.role != Role::weight) {
      const bool one = p.name.ends_with(".weight") || p.name.ends_with(".running_var");
      CHECK(std::ranges::count(all, one ? 1.0f : 0.0f) == static_cast<std::ptrdiff_t>(all.size()));
      continue;
    }
    if (all.size() < 2000) continue;
    ++large;
    const auto size = static_cast<double>(all.size());
    const double stddev = std::sqrt(2 * static_cast<double>(p.spec.shape[1]) / size);  // 2 / outputs of an input
    double sum = 0, squares = 0, beyond = 0;
    for (const double value : all) {
      sum += value;
      squares += value * value;
      beyond += std::abs(value) > 2 * stddev;
    }
    // Four standard errors each.
    CHECK(std::abs(sum / size) < 4 * stddev / std::sqrt(size));
    CHECK(std::sqrt(squares / size) == Approx(stddev).epsilon(4 / std::sqrt(2 * size)));
    CHECK(beyond / size == Approx(0.0455).margin(4 * std::sqrt(0.0455 / size)));
  }
  CHECK(large >= 15);
}

}  // namespace annulus
