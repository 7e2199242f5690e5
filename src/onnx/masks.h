#pragma once

#include "src/onnx/reader.h"

// Masks for scores, as attention has them: 0, or minus infinity for what gets no weight.
namespace annulus {

// A constant as a layer.
Value constant(NodeReader& n, HostTensor tensor);

// Whether a score is so low that nothing can be added to it.
bool is_lowest(double score);

// Whether a value results from a comparison, or from logic: 0 or 1.
bool is_truth(const GraphBuilder& builder, Value value, int depth = 8);

// For a softmax over scores plus a constant mask: makes rows of scores that are all minus infinity become zeros instead
// of NaN. Returns other values unchanged.
Value without_masked_rows(NodeReader& n, Value softmax);

}  // namespace annulus
