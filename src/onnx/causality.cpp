#include "src/onnx/causality.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "models/network/model.h"

namespace annulus {
namespace {

// Returns two windows whose first halves are equal, and whose second halves have no token in common.
std::vector<std::int32_t> two_windows(const TokenShape& tokens) {
  const std::size_t row = tokens.length + 1, half = tokens.length / 2;
  std::vector<std::int32_t> windows(2 * row);
  for (std::size_t i = 0; i < row; ++i) {
    windows[i] = static_cast<std::int32_t>(i % tokens.vocabulary);
    windows[row + i] = static_cast<std::int32_t>((i < half ? i : i + 1) % tokens.vocabulary);
  }
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
  if (!file.reads_tokens()) return;
  const TokenShape& tokens = network.graph.tokens();
  if (tokens.length < 2 || tokens.vocabulary < 2) return;
  const auto device = make_device("cpu");
  Model model(*device, network.graph, Mode::inference, 2);
  initialize(model, network);
  Network& planned = model.network(Mode::inference, 2);
  const std::vector<std::int32_t> windows = two_windows(tokens), labels(2);
  const auto bytes = std::as_bytes(std::span(windows));
  planned.load({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, {.classes = labels});
  planned.forward();
  const Value last = model.graph().nodes().back().inputs[0];  // what the head reads
  std::vector<float> values(elements(planned.spec(last).shape));
  device->read(planned.spec(last), planned.value(last), values);
  const std::size_t window = values.size() / 2, half = tokens.length / 2 * (window / tokens.length);
  float largest = 0, difference = 0;
  for (std::size_t i = 0; i < half; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
    difference = std::max(difference, std::fabs(values[i] - values[window + i]));
  }
  if (difference > 1e-4f * largest)
    fail(
        "{}: its predictions depend on later tokens: only causal language models can be trained; a masked loss "
        "(BERT) is not supported",
        file.name());
}

}  // namespace annulus
