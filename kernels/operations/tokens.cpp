#include "kernels/operations/tokens.h"

#include "kernels/base/error.h"
#include "kernels/operations/shapes.h"

namespace annulus {
namespace {

void expect_sequences(const Shape& shape, std::string_view operation) {
  if (shape.size() != 3) fail("{} takes {{batch, length, width}}, not {}", operation, to_string(shape));
}

}  // namespace

void take_tokens(std::span<const std::int32_t> windows, const WindowForm& form, std::size_t vocabulary,
                 std::size_t begin, std::vector<std::int32_t>& tokens) {
  const std::size_t length = form.length, size = form.size();
  tokens.resize(windows.size() / size * length);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = windows[i / length * size + i % length + begin];
    if (tokens[i] >= static_cast<std::int32_t>(vocabulary)) tokens[i] = -1;
  }
}

Shape TokenEmbedding::output_shape(const Shapes& inputs) const {
  expect_inputs(inputs, 1, kName);
  return {inputs[0][0], window_form(inputs[0]).length, width};
}

std::vector<ParameterDeclaration> TokenEmbedding::parameters(const Shapes&) const {
  return {{"weight", {vocabulary, width}, Role::weight, 0, stddev}};
}

Shape PositionEmbedding::output_shape(const Shapes& inputs) const {
  expect_sequences(inputs[0], kName);
  if (inputs.size() > 1 && (inputs[0][1] != 1 || inputs[1] != Shape{inputs[0][0]}))
    fail("{} takes {{batch, 1, width}} and {{batch}}, not {} and {}", kName, to_string(inputs[0]),
         to_string(inputs[1]));
  if (inputs[0][1] > positions) fail("windows of {} tokens, but there are {} positions", inputs[0][1], positions);
  return inputs[0];
}

std::vector<ParameterDeclaration> PositionEmbedding::parameters(const Shapes& inputs) const {
  return {{"weight", {positions, inputs[0].back()}, Role::weight, 0, stddev}};
}

Shape LanguageModelHead::output_shape(const Shapes& inputs) const {
  expect_inputs(inputs, 2, kName);
  expect_sequences(inputs[0], kName);
  const WindowForm form = window_form(inputs[1]);
  if (inputs[0][0] != inputs[1][0] || inputs[0][1] != form.length || form.targets() == 0)
    fail("{} takes {{batch, length, width}} and windows with as many predicted tokens, not {} and {}", kName,
         to_string(inputs[0]), to_string(inputs[1]));
  return {3};
}

// The metrics come first, as in all losses: the first two outputs' means over the global batch.
std::vector<ParameterDeclaration> LanguageModelHead::parameters(const Shapes& inputs) const {
  std::vector<ParameterDeclaration> all{{"metrics", {2}, Role::metric},
                                        {"weight", {vocabulary, inputs[0].back()}, Role::weight, 0, stddev}};
  if (bias) all.push_back({"bias", {vocabulary}, Role::offset});
  return all;
}

std::uint64_t LanguageModelHead::flops(const Shapes& inputs) const {
  return 2 * elements(inputs[0]) * vocabulary;
}

}  // namespace annulus
