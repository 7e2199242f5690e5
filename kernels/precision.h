#pragma once

#include <string>

#include "kernels/base/tensor.h"

namespace annulus {

// In what numbers a device computes. Parameters, their gradients' sums, batch statistics and the loss are float32 in
// each; what differs is what flows through the network, and what is multiplied.
enum class Precision {
  fp32,  // float32 throughout
  tf32,  // float32 in memory, but products of 10-bit mantissas on tensor cores
  bf16,  // 16 bits in memory with float32's range
  fp16,  // 16 bits in memory with a smaller range: gradients are scaled by what steps show to fit
};

// "fp32", "tf32", "bf16", "fp16"; throws Error for anything else.
Precision parse_precision(const std::string& name);
std::string to_string(Precision precision);

// Of what flows through the network.
DataType value_type(Precision precision);

}  // namespace annulus
