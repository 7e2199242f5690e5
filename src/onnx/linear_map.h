#pragma once

#include "src/onnx/reader.h"

namespace annulus {

// Multiplies a dimension of a value with a constant matrix {extent, new extent}.
Value mapped(NodeReader& n, Value x, std::size_t axis, HostTensor matrix);

}  // namespace annulus
