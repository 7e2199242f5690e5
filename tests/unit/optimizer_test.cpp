#include "src/step/optimizer.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr float kRate = 0.1f;

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

struct OptimizerTrial {
  explicit OptimizerTrial(const UpdateRule& rule, const Averaging& averaging = {})
      : optimizer(*device, parameters, rule, kRate, averaging) {
    parameters.initialize(1);
    for (const Parameter& p : parameters.all())
      device->write(test::random_values(elements(p.spec.shape), p.offset + 1), p.spec, parameters.weight(p));
  }

  // Different gradients in every step, metrics included.
  void make_gradients(std::uint64_t step) {
    for (const Parameter& p : parameters.all())
      device->write(test::random_values(elements(p.spec.shape), mix(step, p.offset)), p.spec, parameters.gradient(p));
  }

  std::size_t size() const { return parameters.weights().bytes / sizeof(float); }

  std::unique_ptr<Device> device = test::make_device(2);
  Model model{*device, small_graph(), Mode::training, 2};
  Parameters& parameters = model.parameters();
  Optimizer optimizer;
};

}  // namespace

TEST_CASE("SGD matches its formula, by each parameter's role") {
  const Sgd rule =
      GENERATE(Sgd{}, Sgd{0.9f}, Sgd{0.9f, 0.05f}, Sgd{0.9f, 0.05f, true}, Sgd{0, 0.1f}, Sgd{0.5f, 0, true});
  CAPTURE(rule.momentum, rule.weight_decay, rule.nesterov);
  OptimizerTrial trial(rule);
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
        value[i] -= kRate * (rule.nesterov ? g + rule.momentum * velocity[i] : velocity[i]);
      }
    }
    trial.optimizer.update({0, trial.size()});
  }

  std::map<Role, std::size_t> seen;
  for (const Parameter& p : trial.parameters.all()) {
    CAPTURE(p.name);
    ++seen[p.role];
    const auto value = test::read(*trial.device, p, trial.parameters.weight(p));
    const auto velocity = test::read(*trial.device, p, trial.optimizer.state(0, p));
    for (std::size_t i = 0; i < value.size(); ++i) {
      REQUIRE(value[i] == Approx(expected[p.name].value[i]).epsilon(0).margin(2e-6));
      REQUIRE(velocity[i] == Approx(expected[p.name].velocity[i]).epsilon(0).margin(2e-6));
    }
  }
  CHECK(seen ==
        std::map<Role, std::size_t>{{Role::weight, 2}, {Role::offset, 4}, {Role::statistic, 2}, {Role::metric, 2}});
}

TEST_CASE("metrics and gradients are not changed") {
  OptimizerTrial trial(Sgd{0.9f, 0.05f});
  trial.make_gradients(1);
  std::vector<std::vector<float>> before;
  for (const Parameter& p : trial.parameters.all())
    for (const DeviceView view :
         {trial.parameters.weight(p), trial.parameters.gradient(p), trial.optimizer.state(0, p)})
      before.push_back(test::read(*trial.device, p, view));
  trial.optimizer.update({0, trial.size()});
  std::size_t i = 0;
  for (const Parameter& p : trial.parameters.all()) {
    CAPTURE(p.name);
    const bool metric = p.role == Role::metric, statistic = p.role == Role::statistic;
    CHECK((test::read(*trial.device, p, trial.parameters.weight(p)) == before[i]) == metric);
    CHECK(test::read(*trial.device, p, trial.parameters.gradient(p)) == before[i + 1]);
    CHECK((test::read(*trial.device, p, trial.optimizer.state(0, p)) == before[i + 2]) == (metric || statistic));
    i += 3;
  }
}

TEST_CASE("updates in slices that split parameters equal an update of the whole arena") {
  const Sgd rule{0.9f, 0.05f, GENERATE(false, true)};
  const std::size_t size = GENERATE(1, 7, 16, 64, 333);
  CAPTURE(rule.nesterov, size);
  if (test::on_gpu() && size % 4 != 0) return;
  OptimizerTrial whole(rule), cut(rule);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (OptimizerTrial* trial : {&whole, &cut}) trial->make_gradients(step);
    whole.optimizer.update({0, whole.size()});
    for (std::size_t begin = 0; begin < cut.size(); begin += size)
      cut.optimizer.update({begin, std::min(begin + size, cut.size())});
    cut.optimizer.update({size, size});  // nothing
  }
  const auto bits = [](const OptimizerTrial& trial, DeviceView view) { return test::bytes_of(*trial.device, view); };
  CHECK(bits(whole, whole.parameters.weights()) == bits(cut, cut.parameters.weights()));
  CHECK(bits(whole, whole.optimizer.state(0)) == bits(cut, cut.optimizer.state(0)));
}

TEST_CASE("the EMA follows all parameters and statistics, faster at first, in any slices") {
  const UpdateRule rule =
      GENERATE(UpdateRule(Sgd{.momentum = 0.9f}), UpdateRule(Lars{.momentum = 0.9f, .trust = 0.1f}));
  const std::size_t size = GENERATE(16, 80, 1 << 20);
  constexpr double kDecay = 0.25;
  OptimizerTrial trial(rule, kDecay);
  trial.optimizer.begin_average();
  const auto floats = [&](DeviceView view) { return test::floats_of(*trial.device, view); };
  std::vector<float> expected = floats(trial.parameters.weights());
  CHECK(floats(trial.optimizer.average()) == expected);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    CAPTURE(rule.index(), size, step);
    trial.make_gradients(step);
    trial.optimizer.begin_step();
    for (std::size_t begin = 0; begin < trial.size(); begin += size)
      trial.optimizer.update({begin, std::min(begin + size, trial.size())});
    const std::vector<float> weights = floats(trial.parameters.weights());
    const double decay = step == 1 ? 2.0 / 11 : kDecay;  // (1 + 2) / 12 equals it
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] += static_cast<float>(1 - decay) * (weights[i] - expected[i]);
    const std::vector<float> average = floats(trial.optimizer.average());
    for (std::size_t i = 0; i < expected.size(); ++i)
      REQUIRE(average[i] == Approx(expected[i]).epsilon(0).margin(1e-6));
  }
}

TEST_CASE("with Lookahead the weights become the average every few steps, in any slices") {
  const std::size_t size = GENERATE(16, 80, 1 << 20);
  constexpr Averaging kLookahead{0.8, 3, 12};
  OptimizerTrial trial(Sgd{.momentum = 0.9f}, kLookahead), plain(Sgd{.momentum = 0.9f});
  trial.optimizer.begin_average();
  const auto floats = [&](DeviceView view) { return test::floats_of(*trial.device, view); };
  std::vector<float> average = floats(trial.parameters.weights());
  for (std::uint64_t step = 1; step <= 12; ++step) {
    CAPTURE(size, step);
    plain.device->upload(test::bytes_of(*trial.device, trial.parameters.weights()), plain.parameters.weights());
    for (OptimizerTrial* one : {&trial, &plain}) {
      one->make_gradients(step);
      one->optimizer.begin_step();
      for (std::size_t begin = 0; begin < one->size(); begin += size)
        one->optimizer.update({begin, std::min(begin + size, one->size())});
    }
    std::vector<float> expected = test::floats_of(*plain.device, plain.parameters.weights());
    if (step % 3 == 0) {
      const auto progress = static_cast<double>(step) / 12;
      const auto share = static_cast<float>(1 - 0.8 * progress * progress * progress);
      for (std::size_t i = 0; i < average.size(); ++i) average[i] += share * (expected[i] - average[i]);
      expected = average;
    }
    const std::vector<float> found = floats(trial.parameters.weights());
    for (std::size_t i = 0; i < average.size(); ++i) REQUIRE(found[i] == Approx(expected[i]).epsilon(0).margin(1e-6));
    average = floats(trial.optimizer.average());
    if (step % 3 == 0) CHECK(average == found);
  }
}

TEST_CASE("a parameter does not change after its last step") {
  const UpdateRule rule = GENERATE(UpdateRule(Sgd{.momentum = 0.9f, .nesterov = true}), UpdateRule(AdamW{}));
  OptimizerTrial trial(rule);
  Optimizer optimizer(
      *trial.device, trial.parameters, rule, kRate, {}, Optimizer::Keeps::all,
      [](const std::string& name) { return name == "conv.bias" ? UpdateFactors{.last_step = 2} : UpdateFactors{}; });
  const auto values = [&] {
    std::map<std::string, std::vector<float>> all;
    for (const Parameter& p : trial.parameters.updated())
      if (p.role != Role::metric) all[p.name] = test::read(*trial.device, p, trial.parameters.weight(p));
    return all;
  };
  for (std::uint64_t step = 1; step <= 4; ++step) {
    const auto before = values();
    trial.make_gradients(step);
    optimizer.begin_step();
    optimizer.update({0, trial.size()});
    for (const auto& [name, now] : values()) {
      CAPTURE(rule.index(), step, name);
      CHECK((now == before.at(name)) == (step > 2 && name == "conv.bias"));
    }
  }
}

TEST_CASE("a learning rate applies to steps that begin after it was set") {
  OptimizerTrial trial(Sgd{}), other(Sgd{});
  const auto bits = [](const OptimizerTrial& t) { return test::bytes_of(*t.device, t.parameters.weights()); };
  const auto step = [](OptimizerTrial& t, float rate) {
    t.make_gradients(1);
    t.optimizer.set_rate(rate);
    t.optimizer.begin_step();
  };
  step(trial, 0.5f);
  trial.optimizer.set_rate(0.25f);
  trial.optimizer.update({0, trial.size()});
  step(other, 0.5f);
  other.optimizer.update({0, other.size()});
  CHECK(bits(trial) == bits(other));
}

TEST_CASE("updating a slice changes nothing outside of it") {
  OptimizerTrial trial(Sgd{0.9f, 0.05f});
  trial.make_gradients(1);
  const auto floats = [&](DeviceView view) { return test::floats_of(*trial.device, view); };
  const Parameter& dense = *std::ranges::find(trial.parameters.all(), "dense.weight", &Parameter::name);
  const std::size_t begin = dense.offset / sizeof(float) + (test::on_gpu() ? 4 : 5);
  const std::size_t end = begin + (test::on_gpu() ? 12 : 11);
  const auto before = floats(trial.parameters.weights());
  trial.optimizer.update({begin, end});
  const auto after = floats(trial.parameters.weights());
  for (std::size_t i = 0; i < before.size(); ++i) {
    CAPTURE(i, begin, end);
    const bool padding = before[i] == 0;
    REQUIRE((after[i] != before[i]) == (i >= begin && i < end && !padding));
  }
}

TEST_CASE("an optimizer that keeps slices allocates nothing before it knows them") {
  OptimizerTrial trial(Sgd{});
  Optimizer optimizer(*trial.device, trial.parameters, AdamW{}, kRate, 0.5, Optimizer::Keeps::slices);
  CHECK(optimizer.states() == 0);
  CHECK_FALSE(optimizer.average());
  optimizer.keep({{0, 16}, {32, 64}}, [](DeviceView) {});
  REQUIRE(optimizer.states() == 2);
  for (const DeviceView kept : {optimizer.state(0), optimizer.state(1), optimizer.average()})
    CHECK(kept.bytes == (16 + 32) * sizeof(float));
}

}  // namespace annulus
