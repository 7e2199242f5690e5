#pragma once

#include <string>
#include <vector>

#include "src/onnx/graph_builder.h"

namespace annulus {

// A network's constant that is not finite.
struct NotFinite {
  Value value;          // the layer with the constant
  std::string problem;  // "3 of its 16 values are NaN or infinite"
};

// Finds the layers on which the logits depend and that have NaN or infinite constants. Constants may be -inf if they
// are only added to what a softmax reads, like attention masks, or are a max pool's padding.
std::vector<NotFinite> not_finite(const GraphBuilder& builder, Value logits);

// "3 of its 16 values are NaN or infinite"; empty if all are finite, or -inf with `mask`.
std::string count_not_finite(const std::vector<float>& values, bool mask = false);

}  // namespace annulus
