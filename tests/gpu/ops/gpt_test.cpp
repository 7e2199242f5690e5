// A GPT, whose embedding is also its head, in every precision, against the same network on the CPU.

#include <catch2/catch.hpp>

#include "models/rewrites/transformer_dropout.h"
#include "models/zoo/zoo.h"
#include "tests/gpu/ops/gpu.h"
#include "tests/unit/small_network.h"

namespace annulus {
namespace {

constexpr std::size_t kBatch = 3, kLength = 40, kVocabulary = 50;

struct Step {
  double loss;
  std::map<std::string, std::vector<float>> gradients;
};

Step run(const DeviceRequest& request, const std::vector<std::int32_t>& windows, float dropout) {
  const auto device = make_device(request);
  const Graph graph = make_model("gpt-tiny", token_task({kLength, kVocabulary}));
  Model model(*device, dropout > 0 ? add_transformer_dropout(graph, dropout) : graph, Mode::training, kBatch);
  model.parameters().initialize(3);
  Network& network = model.network(Mode::training, kBatch);
  test::load_windows(network, windows, std::vector<std::int32_t>{5, 6, 7});
  network.forward();
  network.backward(1.0f / kBatch);
  std::vector<std::int32_t> tokens;
  take_tokens(windows, {kLength}, kVocabulary, 0, tokens);
  const Buffer index = device->allocate(tokens.size() * sizeof tokens[0]);
  device->upload(std::as_bytes(std::span(tokens)), index.view());
  const auto& embedding = *network.embedding_gradient();
  device->add_rows(embedding.rows, embedding.type, index.view(), embedding.width, embedding.table);
  return {network.loss().loss / kBatch, test::gradients(*device, model.parameters())};
}

}  // namespace

TEST_CASE("on a GPU: the loss and the gradients of a GPT") {
  const Precision precision = GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions)));
  const float dropout = GENERATE(0.0f, 0.25f);
  CAPTURE(to_string(precision), dropout);
  auto windows = test::random_labels(kBatch * (kLength + 1), kVocabulary, 7);
  for (std::size_t i = 3; i < windows.size(); i += 11) windows[i] = -1;
  const Step ours = run({.name = "cuda", .precision = precision}, windows, dropout);
  const Step expected = run({.name = "cpu", .threads = 1, .precision = Precision::fp32}, windows, dropout);
  CHECK(ours.loss == Approx(expected.loss).epsilon(test::tolerance(precision)));
  REQUIRE(ours.gradients.size() == expected.gradients.size());
  for (const auto& [name, values] : expected.gradients) {
    CAPTURE(name);
    // The rounding errors of several layers.
    CHECK(test::distance(ours.gradients.at(name), values) <= 4 * test::tolerance(precision) * test::norm(values));
  }
}

}  // namespace annulus
