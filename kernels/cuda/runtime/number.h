#pragma once

#include <span>
#include <vector>

#include "kernels/base/tensor.h"

namespace annulus::cuda {

// Between float32 and a type of values (f32, f16, bf16), on the host. Rounds to the nearest.
std::vector<std::byte> encode(std::span<const float> values, DataType type);
std::vector<float> decode(std::span<const std::byte> bytes, DataType type);

}  // namespace annulus::cuda
