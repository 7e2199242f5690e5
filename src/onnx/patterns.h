#pragma once

#include <optional>

#include "src/onnx/reader.h"

namespace annulus {

// Operations that exporters write as several nodes, ending with a sum or product: GELU, SiLU, Mish, hard swish, layer
// and group normalization. Returns the operation that a op b computes, as a layer; nothing if it is none.
std::optional<Value> recognized(NodeReader& n, Arithmetic::Operator op, Value a, Value b);

// If weights x values is self-attention (kernels/operations/attention.h), with or without a causal mask: returns it as
// a layer, rearranged to the product's shape. Queries, keys and values may be parts of the same value, or values of the
// same shape, which are packed.
std::optional<Value> attention(NodeReader& n, Value weights, Value values);

}  // namespace annulus
