#pragma once

#include <string>

#include "kernels/base/tensor.h"

namespace annulus {

// Number formats that a device computes in. Parameters, their all-reduced gradients, batch statistics and the loss are
// always float32; activations and the factors in products differ.
enum class Precision {
  fp32,  // float32 throughout
  tf32,  // float32 in memory, but products with 10-bit mantissas on tensor cores
  bf16,  // 16 bits in memory with float32's range
  fp16,  // 16 bits in memory with a smaller range: gradients need dynamic loss scaling (LossScaling)
};

// "fp32", "tf32", "bf16", "fp16"; throws Error for anything else.
Precision parse_precision(const std::string& name);
std::string to_string(Precision precision);

// Returns the activations' type.
DataType value_type(Precision precision);

}  // namespace annulus
