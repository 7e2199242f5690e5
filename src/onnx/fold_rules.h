#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "src/onnx/attributes.h"
#include "src/onnx/tensor.h"

// The table behind evaluate() (fold.h): how operators on constants are computed. A missing input is null.
namespace annulus {

using FoldInputs = std::vector<const HostTensor*>;
using FoldRule = HostTensor (*)(const Attributes& attributes, const FoldInputs& inputs);
using FoldRules = std::map<std::string_view, FoldRule>;

const HostTensor& input(const FoldInputs& inputs, std::size_t i);  // throws Error if it is missing
bool has(const FoldInputs& inputs, std::size_t i);

// Sums and extrema along dimensions, matrix triangles, elements at places, and quantized values.
void add_scan_rules(FoldRules& rules);

}  // namespace annulus
