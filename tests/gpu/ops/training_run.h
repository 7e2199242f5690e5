#pragma once

#include <catch2/catch.hpp>

#include "models/network/model.h"
#include "tests/gpu/ops/gpu.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus::test {

// The training of a network on a GPU, with the same samples in every step and no updates.
struct TrainingRun {
  static constexpr std::size_t kBatch = 3;

  TrainingRun(const Graph& graph, DeviceRequest request)
      : device(annulus::make_device((request.name = "cuda", request))), model(*device, graph, Mode::training, kBatch) {
    model.parameters().initialize(3);
  }

  void load(Network& network) const {
    if (!model.graph().reads_tokens()) {
      const Samples samples(model.graph(), kBatch, 3, 11);
      return network.load(samples.images, {samples.labels}, samples.keys);
    }
    const TokenShape& tokens = model.graph().tokens();
    load_windows(network, random_labels(kBatch * (tokens.length + 1), tokens.vocabulary, 7));
  }

  // Returns the loss.
  double step(Mode mode = Mode::training) {
    Network& network = model.network(mode, kBatch);
    load(network);
    network.forward();
    if (mode == Mode::training) network.backward(1.0f / kBatch);
    return network.loss().loss;
  }

  // The layers without an output in memory.
  std::vector<std::string> left_out(Mode mode = Mode::training) {
    Network& network = model.network(mode, kBatch);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < model.graph().nodes().size(); ++i)
      if (!network.value(Graph::output(i))) names.push_back(model.graph().nodes()[i].name);
    return names;
  }

  std::vector<std::byte> gradients() { return bytes_of(*device, model.parameters().gradients()); }

  std::unique_ptr<Device> device;
  Model model;
};

// Checks the loss and every gradient of a step, with their tolerances relative to the expected ones, and that further
// steps, which are recorded ones, are bit-identical.
inline void check_close_training(TrainingRun& ours, TrainingRun& expected, double of_loss, double of_gradients) {
  CHECK(ours.step() == Approx(expected.step()).epsilon(of_loss));
  const auto found = gradients(*ours.device, ours.model.parameters());
  const auto of_expected = gradients(*expected.device, expected.model.parameters());
  REQUIRE(found.size() == of_expected.size());
  for (const auto& [name, values] : of_expected) {
    CAPTURE(name);
    CHECK(distance(found.at(name), values) <= of_gradients * norm(values));
  }
  const auto bytes = ours.gradients();
  for (int repetition = 0; repetition < 2; ++repetition) {
    ours.step();
    CHECK(ours.gradients() == bytes);
  }
}

}  // namespace annulus::test
