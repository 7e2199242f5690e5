#pragma once

#include <string>
#include <vector>

#include "src/onnx/draft.h"

namespace annulus {

// A constant of a network that is not finite.
struct NotFinite {
  Value value;          // the layer with the constant
  std::string problem;  // "3 of its 16 values are NaN or infinite"
};

// Finds the layers on which the logits depend and whose constants are NaN or infinite. Constants of -inf are allowed if
// they are only added to what a softmax reads, as masks of attention are, or are padding of a max pool.
std::vector<NotFinite> not_finite(const Draft& draft, Value logits);

// "3 of its 16 values are NaN or infinite"; empty if all are finite, or -inf with `mask`.
std::string count_not_finite(const std::vector<float>& values, bool mask = false);

}  // namespace annulus
