#include "src/onnx/causality.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "models/network/model.h"

namespace annulus {
namespace {

// Returns windows that differ from the first window from a token on: window i + 1 from token begins[i].
// REQUIRES: each next token is predicted.
std::vector<std::int32_t> windows_that_differ(const TokenShape& tokens, const std::vector<std::size_t>& begins) {
  const auto token = [&](std::size_t i) { return static_cast<std::int32_t>(i % tokens.vocabulary); };
  const std::size_t row = tokens.length + 1;
  std::vector<std::int32_t> windows;
  for (std::size_t i = 0; i < row; ++i) windows.push_back(token(i));
  for (const std::size_t begin : begins)
    for (std::size_t i = 0; i < row; ++i) windows.push_back(token(i < begin ? i : begin + 1));
  return windows;
}

void initialize(Model& model, const ImportedNetwork& network) {
  model.parameters().initialize(1);
  for (const Parameter& p : model.parameters().all())
    if (const auto values = network.values.find(p.name); p.role == Role::frozen && values != network.values.end())
      model.device().write(values->second, p.spec, model.parameters().weight(p));
  model.parameters().weights_changed();
}

}  // namespace

void expect_causal(const OnnxFile& file, const ImportedNetwork& network) {
  if (!network.graph.predicts_tokens() || network.graph.tokens().prediction != Prediction::next) return;
  const TokenShape& tokens = network.graph.tokens();
  if (tokens.length < 2 || tokens.vocabulary < 2) return;
  const std::vector<std::size_t> begins{1, tokens.length / 2, tokens.length - 1};
  const std::size_t batch = begins.size() + 1;
  const auto device = make_device("cpu");
  Model model(*device, network.graph, Mode::inference, batch);
  initialize(model, network);
  Network& planned = model.network(Mode::inference, batch);
  const std::vector<std::int32_t> windows = windows_that_differ(tokens, begins), labels(batch);
  const auto bytes = std::as_bytes(std::span(windows));
  planned.load({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, {.classes = labels});
  planned.forward();
  const Value last = model.graph().nodes().back().inputs[0];  // what the head reads
  std::vector<float> values(elements(planned.spec(last).shape));
  device->read(planned.spec(last), planned.value(last), values);
  const std::size_t window = values.size() / batch;
  float largest = 0, difference = 0;
  for (std::size_t k = 0; k < begins.size(); ++k)
    for (std::size_t i = 0; i < begins[k] * (window / tokens.length); ++i) {
      largest = std::max(largest, std::fabs(values[i]));
      difference = std::max(difference, std::fabs(values[i] - values[(k + 1) * window + i]));
    }
  if (difference > 1e-4f * largest)
    fail(
        "{}: its predictions depend on later tokens: train a masked language model (BERT) with --loss masked; others "
        "must be causal",
        file.name());
}

}  // namespace annulus
