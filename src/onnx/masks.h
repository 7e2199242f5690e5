#pragma once

#include "src/onnx/reader.h"

// Masks of scores, as attention has them: 0, or minus infinity for what gets no weight.
namespace annulus {

// A constant as a layer.
Value constant(NodeReader& n, HostTensor tensor);

// Whether a score is so low that nothing can be added to it.
bool is_lowest(double score);

// Whether a value is the result of a comparison, or of logic: 0 or 1.
bool is_truth(const Draft& draft, Value value, int depth = 8);

// A softmax whose scores are sums with a constant mask: rows of scores that are all minus infinity become zeros instead
// of NaN. Other values are returned unchanged.
Value without_masked_rows(NodeReader& n, Value softmax);

}  // namespace annulus
