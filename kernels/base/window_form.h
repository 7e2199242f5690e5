#pragma once

#include <cstddef>

#include "kernels/base/tensor.h"

namespace annulus {

// What a network computes from `length` tokens, and the shape of a window for it.
enum class Prediction {
  next,    // each next token. {batch, length + 1}: the network reads the first `length` tokens, and predicts the last
  masked,  // the tokens that are masked. {batch, 2, length}: the network reads the first row, and predicts the second
  label,   // what a label says, no tokens. {batch, 1, length}
};

// Returns the number of tokens in `length` that are masked and predicted: 15 %, at least one (Devlin et al., "BERT:
// pre-training of deep bidirectional transformers for language understanding", NAACL 2019).
std::size_t masked_tokens(std::size_t length);

// Where the tokens of a window are.
struct WindowForm {
  std::size_t length;  // tokens that the network reads, from the window's begin
  Prediction prediction = Prediction::next;

  std::size_t size() const;       // tokens in the window
  std::size_t predicted() const;  // the first predicted token, of `length`
  std::size_t targets() const;    // the number of predicted tokens that are not missing, at most
  Shape shape() const;            // without the batch
};

// Returns the form of windows with this shape. Throws Error if it is none.
WindowForm window_form(const Shape& windows);

}  // namespace annulus
