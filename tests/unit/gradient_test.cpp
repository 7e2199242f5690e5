// Compares gradients through whole graphs, whose values have one reader or several, with central differences of the
// loss; and tests the properties common to all networks over the same parameters.

#include <catch2/catch.hpp>
#include <cstring>

#include "models/rewrites/freeze.h"
#include "src/step/optimizer.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

using test::PlainNetwork;
using test::Samples;

constexpr std::size_t kClasses = 4;
const ImageShape kImage{8, 9, 3};

Graph with_input() {
  Graph g(kImage);
  g.add("input", ImageInput{{0.5f, 0.4f, 0.3f}, {0.25f, 0.5f, 0.3f}}, {Graph::kImages});
  return g;
}

Graph with_loss(Graph g, Value x) {
  x = g.add("dense", Dense{kClasses}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  return g;
}

constexpr Value kInput = 3;

Graph chain() {
  Graph g = with_input();
  Value x = g.add("conv1", Convolution{.channels = 6, .kernel = 3, .padding = 1}, {kInput});
  x = g.add("relu1", Relu{}, {x});
  x = g.add("pool1", MaxPool{3, 2, 1}, {x});
  x = g.add("conv2", Convolution{.channels = 9, .kernel = 3, .bias = false, .relu = true}, {x});
  x = g.add("hidden", Dense{11, true}, {x});
  return with_loss(g, x);
}

Graph residual() {
  Graph g = with_input();
  Value x = g.add("stem", Convolution{.channels = 5, .kernel = 3, .padding = 1, .bias = false}, {kInput});
  x = g.add("norm0", BatchNorm{}, {x});
  const Value shortcut = g.add("relu0", Relu{}, {x});
  x = g.add("conv1", Convolution{.channels = 5, .kernel = 3, .padding = 1, .bias = false}, {shortcut});
  x = g.add("norm1", BatchNorm{}, {x});
  x = g.add("relu1", Relu{}, {x});
  x = g.add("conv2", Convolution{.channels = 5, .kernel = 3, .padding = 1}, {x});
  x = g.add("add", Add{}, {x, shortcut});
  const Value narrow = g.add("relu2", Relu{}, {x});
  const Value project = g.add("project", Convolution{.channels = 16, .kernel = 1, .stride = 2}, {narrow});
  x = g.add("conv3", Convolution{.channels = 16, .kernel = 3, .stride = 2, .padding = 1}, {narrow});
  x = g.add("add2", Add{}, {x, project});
  x = g.add("pool", AdaptiveAveragePool{1}, {x});
  return with_loss(g, x);
}

// One value that four nodes read, one of them twice, and additions of different layouts: the input's is plain.
Graph many_readers() {
  Graph g = with_input();
  const Value a = g.add("conv", Convolution{.channels = 3, .kernel = 3, .padding = 1}, {kInput});
  const Value b = g.add("relu", Relu{}, {a});
  const Value c = g.add("conv2", Convolution{.channels = 3, .kernel = 3, .padding = 1}, {a});
  const Value d = g.add("twice", Add{}, {a, a});
  const Value e = g.add("input_first", Add{}, {kInput, b});
  const Value f = g.add("input_second", Add{}, {c, kInput});
  const Value h = g.add("pool", MaxPool{3, 3, 1}, {g.add("sum1", Add{}, {e, f})});
  const Value k = g.add("pool2", MaxPool{3, 3, 1}, {g.add("sum2", Add{}, {d, a})});
  return with_loss(g, g.add("sum3", Add{}, {h, k}));
}

// Nothing below the first layer with parameters needs a gradient, whichever layer that is.
Graph norm_first() {
  Graph g = with_input();
  Value x = g.add("pool", MaxPool{2, 2}, {g.add("relu", Relu{}, {kInput})});
  x = g.add("norm", BatchNorm{}, {x});
  return with_loss(g, x);
}

Graph dense_first() {
  Graph g = with_input();
  return with_loss(g, g.add("hidden", Dense{7, true}, {kInput}));
}

// Branches with every kind of pool, one of them reading the same value twice, and another concatenation after another
// dropout; channels that do not fill a block.
Graph branches() {
  Graph g = with_input();
  const Value stem = g.add("stem", Convolution{.channels = 8, .kernel = 3, .padding = 1}, {kInput});
  const Value wide = g.add("wide", Convolution{.channels = 8, .kernel = {1, 3}, .padding = {0, 1}}, {stem});
  const Value tall = g.add("tall", Convolution{.channels = 16, .kernel = {3, 1}, .padding = {1, 0}}, {stem});
  const Value pool = g.add("pool", AveragePool{3, 1, 1}, {stem});
  Value x = g.add("concat1", Concat{}, {wide, tall, pool, wide});
  x = g.add("dropout1", Dropout{0.25f, 0}, {x, Graph::kSampleKeys});
  const Value odd = g.add("odd", Convolution{.channels = 5, .kernel = 1}, {x});
  x = g.add("concat2", Concat{}, {odd, stem, kInput});
  x = g.add("means", AdaptiveAveragePool{{3, 2}}, {x});
  x = g.add("hidden", Dense{7, true}, {g.add("dropout2", Dropout{0.5f, 1}, {x, Graph::kSampleKeys})});
  const Value again = g.add("vectors", Concat{}, {x, x});
  return with_loss(g, again);
}

// Layers that are frozen wholly or in part, between trained ones.
Graph frozen_between() {
  return freeze(residual(), {"norm0.running_*", "conv1", "norm1", "conv2.bias", "conv3.weight"});
}

// And below all trained ones, where only dropout differs from inference.
Graph frozen_below() {
  return freeze(branches(), {"stem", "wide", "tall"});
}

struct Named {
  const char* name;
  Graph (*make)();
};

const Named kGraphs[] = {{"chain", chain},
                         {"residual", residual},
                         {"many readers", many_readers},
                         {"norm first", norm_first},
                         {"dense first", dense_first},
                         {"branches", branches},
                         {"frozen between", frozen_between},
                         {"frozen below", frozen_below}};

// The sum of the samples' losses, from the logits, without float32's rounding of the sum.
double loss(Device& device, const Graph& graph, Network& network, const std::vector<std::int32_t>& labels) {
  network.forward();
  const Value logits_value = graph.values() - 2;
  std::vector<float> logits(elements(network.spec(logits_value).shape));
  device.read(network.spec(logits_value), network.value(logits_value), logits);
  double sum = 0;
  for (std::size_t n = 0; n < labels.size(); ++n) {
    double total = 0;
    for (std::size_t c = 0; c < kClasses; ++c) total += std::exp(static_cast<double>(logits[n * kClasses + c]));
    sum += std::log(total) - static_cast<double>(logits[n * kClasses + static_cast<std::size_t>(labels[n])]);
  }
  return sum;
}

}  // namespace

TEST_CASE("gradients match finite differences of the loss") {
  const Named named = GENERATE(from_range(std::begin(kGraphs), std::end(kGraphs)));
  const std::size_t batch = GENERATE(1, 3);
  const int threads = GENERATE(1, 2);
  CAPTURE(named.name, batch, threads);
  const auto device = test::make_device(threads);
  const Graph graph = named.make();
  PlainNetwork plain(*device, graph, batch);
  plain.parameters.initialize(4);
  const Samples samples(graph, batch, kClasses, 7);
  test::run(plain.network, samples, 1);
  const auto expected_gradients = test::gradients(*device, plain.parameters);
  // No stale values: the step reads nothing that it has not written.
  const DeviceView memory = plain.memory.of(0);
  device->upload(std::vector<std::byte>(memory.bytes, std::byte{255}), memory);
  test::run(plain.network, samples, 1);
  CHECK(test::gradients(*device, plain.parameters) == expected_gradients);

  std::uint64_t seed = 0;
  for (const Parameter& p : plain.parameters.all()) {
    if (!p.trained()) continue;
    const auto gradient = test::read(*device, p, plain.parameters.gradient(p));
    const auto weights = test::read(*device, p, plain.parameters.weight(p));
    const double length = test::norm(gradient);
    // Half along the gradient, where the change is largest, half anywhere.
    const auto random = test::random_values(gradient.size(), ++seed);
    std::vector<float> direction(gradient.size());
    double expected = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = static_cast<float>(gradient[i] / (length + 1e-9) + random[i] / test::norm(random));
      expected += gradient[i] * direction[i];
    }
    const auto loss_at = [&](float step) {
      auto moved = weights;
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
      device->write(moved, p.spec, plain.parameters.weight(p));
      return loss(*device, graph, plain.network, samples.labels);
    };
    constexpr float kStep = 1e-3f;
    const double measured = (loss_at(kStep) - loss_at(-kStep)) / (2 * static_cast<double>(kStep));
    device->write(weights, p.spec, plain.parameters.weight(p));
    CAPTURE(p.name, length);
    CHECK(measured == Approx(expected).epsilon(0.01).margin(2e-3));
  }
}

TEST_CASE("networks of different batch sizes over the same parameters agree") {
  const Named named = GENERATE(from_range(std::begin(kGraphs), std::end(kGraphs)));
  CAPTURE(named.name);
  const bool norm = named.make == residual || named.make == norm_first;
  const auto device = test::make_device(2);
  Model model(*device, named.make(), Mode::training, 32);
  model.parameters().initialize(3);
  const Samples samples(model.graph(), 32, kClasses, 5);
  const std::size_t pixels = samples.images.size() / 32;

  // Batch norm uses the statistics of the batch, except in inference.
  const Mode mode = norm ? Mode::inference : Mode::training;
  const auto run = [&](std::size_t begin, std::size_t count) {
    Network& network = model.network(mode, count);
    network.load(std::span(samples.images).subspan(begin * pixels, count * pixels),
                 {std::span(samples.labels).subspan(begin, count)}, std::span(samples.keys).subspan(begin, count));
    network.forward();
    if (mode == Mode::training) network.backward(1.0f / 32);
    return network.loss();
  };
  const LossSums whole = run(0, 32);
  const auto expected = test::gradients(*device, model.parameters());
  std::map<std::string, std::vector<float>> sums;
  for (const std::size_t size : {1, 8, 16}) {
    CAPTURE(size);
    LossSums parts;
    sums.clear();
    for (std::size_t begin = 0; begin < 32; begin += size) {
      const LossSums part = run(begin, size);
      parts.loss += part.loss;
      parts.measure += part.measure;
      for (const auto& [name, values] : test::gradients(*device, model.parameters())) {
        sums[name].resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) sums[name][i] += values[i];
      }
    }
    CHECK(parts.loss == Approx(whole.loss).epsilon(1e-5));
    CHECK(parts.measure == whole.measure);
    if (mode == Mode::inference) continue;
    for (const auto& [name, values] : expected) {
      CAPTURE(name);
      CHECK(test::distance(values, sums[name]) <= 1e-5 * (1 + test::norm(values)));
    }
  }
}

TEST_CASE("padding in parameter layouts stays zero") {
  const Named named = GENERATE(from_range(std::begin(kGraphs), std::end(kGraphs)));
  CAPTURE(named.name);
  const auto device = test::make_device(2);
  Model model(*device, named.make(), Mode::training, 3);
  Parameters& parameters = model.parameters();
  parameters.initialize(3);
  Optimizer optimizer(*device, parameters, Sgd{.momentum = 0.9f, .weight_decay = 0.01f, .nesterov = true}, 0.1f);
  const Samples samples(model.graph(), 3, kClasses, 5);
  for (int step = 0; step < 3; ++step) {
    test::run(model.network(Mode::training, 3), samples, 1.0f / 3);
    optimizer.update({0, parameters.weights().bytes / sizeof(float)});
  }
  std::size_t padding = 0;
  for (const Parameter& p : parameters.updated())
    for (const DeviceView view : {parameters.weight(p), parameters.gradient(p), optimizer.state(0, p)}) {
      const Buffer clean = device->allocate(p.bytes);
      device->write(test::read(*device, p, view), p.spec, clean.view());
      CAPTURE(p.name);
      CHECK(test::bytes_of(*device, clean.view()) == test::bytes_of(*device, view));
      padding += p.bytes - elements(p.spec.shape) * sizeof(float);
    }
  CHECK(padding > 0);
}

}  // namespace annulus
