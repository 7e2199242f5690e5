#include "models/network/decoding.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "models/zoo/zoo.h"
#include "src/step/infer.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr std::size_t kLength = 9, kVocabulary = 20;

void set_random_weights(Device& device, Parameters& parameters) {
  for (const Parameter& p : parameters.all())
    if (p.trained())
      device.write(test::random_values(elements(p.spec.shape), std::hash<std::string>()(p.name)), p.spec,
                   parameters.weight(p));
  parameters.weights_changed();
}

double loss_of(std::span<const float> logits, std::int32_t target) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  return std::log(sum) - double{logits[static_cast<std::size_t>(target)]};
}

}  // namespace

// The second text begins some steps after the first.
TEST_CASE("decoding token by token gives the losses of whole windows") {
  const auto device = test::make_device(GENERATE(1, 2));
  const Graph graph = make_model("gpt-tiny", token_task({kLength, kVocabulary}));
  constexpr std::size_t kBatch = 2;
  constexpr std::array<std::size_t, kBatch> kBegin{0, 3};
  std::array<std::vector<std::int32_t>, kBatch> windows;
  for (std::size_t i = 0; i < kBatch; ++i) windows[i] = test::random_labels(kLength + 1, kVocabulary, 7 + i);

  Model decoding(*device, decoding_graph(graph, kLength), Mode::inference, kBatch);
  set_random_weights(*device, decoding.parameters());
  Network& network = decoding.network(Mode::inference, kBatch);
  std::array<double, kBatch> losses{};
  for (std::size_t step = 0; step < kLength + kBegin.back(); ++step) {
    std::vector<std::int32_t> tokens, positions;
    for (std::size_t i = 0; i < kBatch; ++i) {
      const std::size_t position = std::clamp(step, kBegin[i], kBegin[i] + kLength - 1) - kBegin[i];
      tokens.insert(tokens.end(), {windows[i][position], -1});
      positions.push_back(static_cast<std::int32_t>(position));
    }
    const auto bytes = std::as_bytes(std::span(tokens));
    network.load({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, {.classes = positions});
    network.forward();
    const auto logits = read_value(decoding, network, decoding.graph().values() - 1);
    for (std::size_t i = 0; i < kBatch; ++i)
      if (step >= kBegin[i] && step < kBegin[i] + kLength)
        losses[i] += loss_of(std::span(logits).subspan(i * kVocabulary, kVocabulary),
                             windows[i][static_cast<std::size_t>(positions[i]) + 1]);
  }

  Model whole(*device, graph, Mode::inference, 1);
  set_random_weights(*device, whole.parameters());
  for (std::size_t i = 0; i < kBatch; ++i) {
    test::load_windows(whole.network(Mode::inference, 1), windows[i]);
    whole.network(Mode::inference, 1).forward();
    const double loss = whole.network(Mode::inference, 1).loss().loss;  // mean over the window
    CHECK(losses[i] / kLength == Approx(loss).epsilon(1e-4));
    CHECK(loss > 2 * std::log(kVocabulary));  // far from equal probabilities
  }
}

TEST_CASE("text is decoded only if attention is causal") {
  const Graph graph = make_model("gpt-tiny", token_task({kLength, kVocabulary}));
  CHECK(positions_of(graph) == kLength);
  Graph seeing(graph.tokens());
  for (Node node : graph.nodes()) {
    if (auto* attention = std::get_if<Attention>(&node.operation)) attention->causal = false;
    seeing.add(std::move(node));
  }
  CHECK_THROWS_WITH(decoding_graph(seeing, kLength), "layer h.0.attn: its attention is not causal");
}

}  // namespace annulus
