#pragma once

#include <optional>

#include "src/onnx/reader.h"

namespace annulus {

// How networks that read tokens begin and end (kernels/operations/tokens.h).

// Throws Error if a row of the table that a Gather reads has no gradient in PyTorch (padding_idx), or if gradients are
// divided by the tokens' counts.
void expect_plain_gradient(const NodeReader& n);

// Reads a Gather that looks up rows for the tokens.
Value token_embedding(NodeReader& n);

// If x contains embedded tokens, and `rows` are a table's first rows, one for each position: returns their sum as a
// layer.
std::optional<Value> position_embedding(NodeReader& n, Value x, Value rows);

// Names a layer with attention to later tokens; empty if there is none.
std::string attends_to_later_tokens(const GraphBuilder& builder);

// Replaces the linear layer that computes logits {batch, length, vocabulary} by a language model's head, and returns
// the head's output. Throws Error if something else computes them, or if each next token is predicted and attention
// reads it.
Value language_model_head(GraphBuilder& builder, Value logits, Prediction prediction);

// Returns how many tokens a network with a head can read and predict.
std::size_t vocabulary(const GraphBuilder& builder);

}  // namespace annulus
