#pragma once

#include <optional>

#include "src/onnx/reader.h"

namespace annulus {

// Operations that exporters write as several nodes, the last of which is a sum or product: GELU, SiLU, Mish, hard
// swish, layer and group normalization. Returns the one that a op b computes, as a layer; nothing if it is none.
std::optional<Value> recognized(NodeReader& n, Arithmetic::Operator op, Value a, Value b);

}  // namespace annulus
