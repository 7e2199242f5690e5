#pragma once

#include <optional>

#include "src/onnx/reader.h"

namespace annulus {

// Operations that exporters write as several nodes, ending with a sum or product: GELU, SiLU, Mish, hard swish, layer
// and group normalization. Returns the operation that a op b computes, as a layer; nothing if it is none.
std::optional<Value> recognized(NodeReader& n, Arithmetic::Operator op, Value a, Value b);

// If weights x values is self-attention with queries, keys and values that are parts of the same value
// (kernels/operations/ attention.h), with or without a causal mask: returns it as a layer, rearranged to the product's
// shape.
std::optional<Value> attention(NodeReader& n, Value weights, Value values);

}  // namespace annulus
