#pragma once

#include "src/onnx/reader.h"

namespace annulus {

// Multiplies two stacks of matrices, which are repeated to fit each other. Recognizes attention.
Value stacked_product(NodeReader& n, Value a, Value b);

}  // namespace annulus
