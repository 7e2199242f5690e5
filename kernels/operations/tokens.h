#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/window_form.h"
#include "kernels/operations/parameter.h"

// Operations for networks that read tokens, from windows of int32. A token of -1 is missing: it is not predicted, and
// embedded as zeros.
namespace annulus {

// Sets `tokens` to `form.length` tokens of each window, {batch, length}, from token `begin` on: those that a network
// reads (0), or predicts (form.predicted()). Tokens that are missing or not in the vocabulary are -1.
void take_tokens(std::span<const std::int32_t> windows, const WindowForm& form, std::size_t vocabulary,
                 std::size_t begin, std::vector<std::int32_t>& tokens);

// Looks up the table rows {vocabulary, width} for the tokens that a network reads: {batch, length, width}.
struct TokenEmbedding {
  static constexpr auto kName = "token embedding";

  std::size_t vocabulary, width;
  float stddev = 0.02f;  // for the initial values

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Adds the first `length` rows of a table {positions, width} to {batch, length, width}. With a second input, {batch},
// int32, `length` is 1, and the second input names the row, in inference only.
struct PositionEmbedding {
  static constexpr auto kName = "position embedding";

  std::size_t positions;
  float stddev = 0.02f;

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// A linear layer from {batch, length, width} to the vocabulary, and the softmax cross-entropy between the logits and
// the tokens that a window says are predicted, at most WindowForm::targets(). They are computed for blocks of tokens,
// so that there is never more than a single block of logits. A sample's loss is the sum over its tokens / targets.
// Output {3}, float32: the samples' summed losses; the summed shares of their tokens, among the targets, that have the
// largest logit; and the number of tokens that are not missing / targets. In training, backward computes the output
// together with the gradients. A network's last operation.
struct LanguageModelHead {
  static constexpr auto kName = "language-model head";

  std::size_t vocabulary;
  float stddev = 0.02f;
  bool bias = false;

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
  std::uint64_t flops(const Shapes& inputs) const;
};

}  // namespace annulus
