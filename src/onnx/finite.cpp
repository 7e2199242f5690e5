#include "src/onnx/finite.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace annulus {
namespace {

template <class Kind>
bool is(const Operation& operation) {
  return std::holds_alternative<Kind>(operation);
}

// Whether a layer ignores -inf among the inputs: weights become 0, and maxima come from other values.
bool ignores_mask(const Operation& operation) {
  return is<Softmax>(operation) || is<MaxPool>(operation);
}

// Whether a layer passes a mask's -inf on to a layer that ignores it: sums, choices, and layers that only move
// elements.
bool passes_mask(const Operation& operation) {
  const auto* arithmetic = std::get_if<Arithmetic>(&operation);
  using enum Arithmetic::Operator;
  return (arithmetic != nullptr && (arithmetic->op == sum || arithmetic->op == choice)) || is<Add>(operation) ||
         is<Reshape>(operation) || is<Transpose>(operation) || is<Expand>(operation) || is<Slice>(operation) ||
         is<Gather>(operation) || is<Concat>(operation);
}

// For each layer, whether all used layers that read it ignore -inf in the end.
std::vector<bool> masks(const GraphBuilder& builder, const std::vector<bool>& used) {
  const auto& layers = builder.layers();
  std::vector<bool> masks(layers.size(), true), read(layers.size(), false);
  for (std::size_t i = layers.size(); i-- > 0;) {
    if (!used[i]) continue;
    masks[i] = masks[i] && read[i];
    const auto* operation = std::get_if<Operation>(&layers[i].operation);
    const bool good = operation != nullptr && (ignores_mask(*operation) || (passes_mask(*operation) && masks[i]));
    for (const Value input : layers[i].inputs) {
      if (!Graph::has_node(input)) continue;
      const std::size_t layer = input - Graph::output(0);
      masks[layer] = masks[layer] && good;
      read[layer] = true;
    }
  }
  return masks;
}

// Returns an operation's numbers that come from constants in the file.
std::vector<float> numbers(const Operation& operation) {
  if (const auto* constant = std::get_if<Constant>(&operation)) return constant->values;
  if (const auto* activation = std::get_if<Activation>(&operation)) return {activation->alpha, activation->beta};
  if (const auto* pad = std::get_if<Pad>(&operation)) return {pad->value};
  if (const auto* input = std::get_if<ImageInput>(&operation)) {
    std::vector<float> all = input->mean;
    all.insert(all.end(), input->stddev.begin(), input->stddev.end());
    return all;
  }
  return {};
}

}  // namespace

std::string count_not_finite(const std::vector<float>& values, bool mask) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  std::size_t count = 0;
  for (const float value : values) count += !std::isfinite(value) && !(mask && value == kMasked);
  if (count == 0) return "";
  return fmt::format("{} of its {} values {} NaN or infinite", count, values.size(), count == 1 ? "is" : "are");
}

std::vector<NotFinite> not_finite(const GraphBuilder& builder, Value logits) {
  std::vector<NotFinite> found;
  const std::vector<bool> used = builder.used_layers(logits), mask = masks(builder, used);
  for (std::size_t i = 0; i < used.size(); ++i) {
    const auto* operation = std::get_if<Operation>(&builder.layers()[i].operation);
    if (!used[i] || operation == nullptr) continue;
    const std::string problem = count_not_finite(numbers(*operation), mask[i]);
    if (!problem.empty()) found.push_back({Graph::output(i), problem});
  }
  return found;
}

}  // namespace annulus
