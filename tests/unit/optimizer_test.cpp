#include "src/optimizer.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "tests/unit/small_network.h"

namespace annulus {
namespace {

// Has parameters of every role, some smaller than a slot.
Graph small_graph() {
  Graph g({6, 6, 1});
  Value x = g.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  x = g.add("conv", Convolution{.channels = 5, .kernel = 3}, {x});
  x = g.add("norm", BatchNorm{}, {x});
  x = g.add("dense", Dense{37}, {x});
  g.add("loss", SoftmaxCrossEntropy{}, {x, Graph::kLabels});
  return g;
}

struct Trial {
  explicit Trial(const SgdStep& rule) : optimizer(*device, parameters, rule) {
    parameters.initialize(1);
    for (const Parameter& p : parameters.all())
      device->write(test::random_values(elements(p.spec.shape), p.offset + 1), p.spec, parameters.weight(p));
  }

  // Other gradients in every step, metrics' included.
  void make_gradients(std::uint64_t step) {
    for (const Parameter& p : parameters.all())
      device->write(test::random_values(elements(p.spec.shape), mix(step, p.offset)), p.spec, parameters.gradient(p));
  }

  std::size_t size() const { return parameters.weights().bytes / sizeof(float); }

  std::unique_ptr<Device> device = make_device("cpu", 2);
  Model model{*device, small_graph(), Mode::training, 2};
  Parameters& parameters = model.parameters();
  Optimizer optimizer;
};

bool same_bits(DeviceView a, DeviceView b) {
  return a.bytes == b.bytes && std::memcmp(a.address, b.address, a.bytes) == 0;
}

}  // namespace

TEST_CASE("stochastic gradient descent by its formula, each parameter by its role") {
  const SgdStep rule = GENERATE(SgdStep{0.1f}, SgdStep{0.1f, 0.9f}, SgdStep{0.1f, 0.9f, 0.05f},
                                SgdStep{0.1f, 0.9f, 0.05f, true}, SgdStep{0.2f, 0, 0.1f}, SgdStep{0.2f, 0.5f, 0, true});
  CAPTURE(rule.rate, rule.momentum, rule.weight_decay, rule.nesterov);
  Trial trial(rule);
  struct Expected {
    std::vector<double> value, velocity;
  };
  std::map<std::string, Expected> expected;
  for (const Parameter& p : trial.parameters.all()) {
    const auto start = test::read(*trial.device, p, trial.parameters.weight(p));
    expected[p.name] = {{start.begin(), start.end()}, std::vector<double>(start.size())};
  }

  for (std::uint64_t step = 0; step < 4; ++step) {
    trial.make_gradients(step);
    for (const Parameter& p : trial.parameters.all()) {
      const auto gradient = test::read(*trial.device, p, trial.parameters.gradient(p));
      auto& [value, velocity] = expected[p.name];
      for (std::size_t i = 0; i < value.size(); ++i) {
        if (p.role == Role::metric) continue;
        if (p.role == Role::statistic) {
          value[i] = 0.9 * value[i] + 0.1 * gradient[i];
          continue;
        }
        const double decay = p.role == Role::weight ? static_cast<double>(rule.weight_decay) : 0;
        const double g = gradient[i] + decay * value[i];
        velocity[i] = rule.momentum * velocity[i] + g;
        value[i] -= rule.rate * (rule.nesterov ? g + rule.momentum * velocity[i] : velocity[i]);
      }
    }
    trial.optimizer.update({0, trial.size()});
  }

  std::map<Role, std::size_t> seen;
  for (const Parameter& p : trial.parameters.all()) {
    CAPTURE(p.name);
    ++seen[p.role];
    const auto value = test::read(*trial.device, p, trial.parameters.weight(p));
    const auto velocity = test::read(*trial.device, p, trial.optimizer.velocity(p));
    for (std::size_t i = 0; i < value.size(); ++i) {
      REQUIRE(value[i] == Approx(expected[p.name].value[i]).epsilon(0).margin(2e-6));
      REQUIRE(velocity[i] == Approx(expected[p.name].velocity[i]).epsilon(0).margin(2e-6));
    }
  }
  CHECK(seen ==
        std::map<Role, std::size_t>{{Role::weight, 2}, {Role::offset, 4}, {Role::statistic, 2}, {Role::metric, 2}});
}

TEST_CASE("metrics are left alone to the bit, and gradients are only read") {
  Trial trial({0.1f, 0.9f, 0.05f});
  trial.make_gradients(1);
  std::vector<std::vector<float>> before;
  for (const Parameter& p : trial.parameters.all())
    for (const DeviceView view :
         {trial.parameters.weight(p), trial.parameters.gradient(p), trial.optimizer.velocity(p)})
      before.push_back(test::read(*trial.device, p, view));
  trial.optimizer.update({0, trial.size()});
  std::size_t i = 0;
  for (const Parameter& p : trial.parameters.all()) {
    CAPTURE(p.name);
    const bool metric = p.role == Role::metric, statistic = p.role == Role::statistic;
    CHECK((test::read(*trial.device, p, trial.parameters.weight(p)) == before[i]) == metric);
    CHECK(test::read(*trial.device, p, trial.parameters.gradient(p)) == before[i + 1]);
    CHECK((test::read(*trial.device, p, trial.optimizer.velocity(p)) == before[i + 2]) == (metric || statistic));
    i += 3;
  }
}

TEST_CASE("slices that cut through parameters update what the whole arena does") {
  const SgdStep rule{0.1f, 0.9f, 0.05f, GENERATE(false, true)};
  const std::size_t size = GENERATE(1, 7, 16, 64, 333);
  CAPTURE(rule.nesterov, size);
  Trial whole(rule), cut(rule);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (Trial* trial : {&whole, &cut}) trial->make_gradients(step);
    whole.optimizer.update({0, whole.size()});
    for (std::size_t begin = 0; begin < cut.size(); begin += size)
      cut.optimizer.update({begin, std::min(begin + size, cut.size())});
    cut.optimizer.update({size, size});  // nothing
  }
  CHECK(same_bits(whole.parameters.weights(), cut.parameters.weights()));
  CHECK(same_bits(whole.optimizer.velocity(), cut.optimizer.velocity()));
}

TEST_CASE("a slice changes nothing outside of it") {
  Trial trial({0.1f, 0.9f, 0.05f});
  trial.make_gradients(1);
  const auto floats = [](DeviceView view) {
    return std::vector<float>(reinterpret_cast<float*>(view.address),
                              reinterpret_cast<float*>(view.address + view.bytes));
  };
  const Parameter& dense = *std::ranges::find(trial.parameters.all(), "dense.weight", &Parameter::name);
  const std::size_t begin = dense.offset / sizeof(float) + 5, end = begin + 11;
  const auto before = floats(trial.parameters.weights());
  trial.optimizer.update({begin, end});
  const auto after = floats(trial.parameters.weights());
  for (std::size_t i = 0; i < before.size(); ++i) {
    CAPTURE(i, begin, end);
    REQUIRE((after[i] != before[i]) == (i >= begin && i < end));
  }
}

}  // namespace annulus
