#pragma once

#include <span>
#include <vector>

#include "kernels/base/tensor.h"

namespace annulus::cuda {

// Convert between float32 and an activation type (f32, f16 or bf16), on the host. Round to nearest.
std::vector<std::byte> encode(std::span<const float> values, DataType type);
std::vector<float> decode(std::span<const std::byte> bytes, DataType type);

}  // namespace annulus::cuda
