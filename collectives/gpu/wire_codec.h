#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/wire_type.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// Converts arrays in GPU memory to and from 16-bit messages, as collectives/wire_type.h does. REQUIRES: `wire` is bf16
// or fp16; `coded` and the like are aligned to 16 bytes, and have room for a multiple of 16 bytes. Vectorized if
// `values` are aligned to 16 bytes, too. Uses only a part of the GPU, since it runs beside the computation.
void encode(WireType wire, const float* values, std::uint16_t* coded, std::size_t count, cudaStream_t stream);
void decode(WireType wire, const std::uint16_t* coded, float* values, std::size_t count, cudaStream_t stream);

// sum[i] = ((values[i] + arrays[0][i]) + arrays[1][i]) + ..., added in float32 and rounded once. The arrays are
// `distance` numbers apart, a multiple of 8.
void sum_coded(WireType wire, const float* values, const std::uint16_t* arrays, std::size_t distance, std::size_t size,
               std::uint16_t* sum, std::size_t count, cudaStream_t stream);

}  // namespace annulus::cuda
