#pragma once

// Products as the PTX ISA describes them, for kernels/cuda/ops/product/warp.h, a thread's part at a time. Defined here,
// so that the accesses are reported (races.h).

#include "tests/gpu/emulator/device_language.h"

namespace emulated {

// Returns a value in shared memory. `address`: where the value's matrix row has 16 bytes.
template <class T>
float matrix_value(const std::byte* address, unsigned at) {
  const auto offset = static_cast<std::size_t>(address - shared_memory());
  if (offset % 16 != 0) abort_emulation("a matrix row in shared memory is not aligned to 16 bytes");
  if (offset + 16 > kSharedBytes) abort_emulation("a product reads beyond shared memory");
  return static_cast<float>(reinterpret_cast<const T*>(address)[at]);
}

// `left`: row l % 16 in lane l.
template <class T, bool right_transposed, unsigned count>
void multiply(float (&sums)[count], const std::byte* left, const std::byte* right, unsigned pitch) {
  constexpr unsigned kDepth = 16, kRow = 8;  // values
  const unsigned row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  float rows[2][kDepth];
  for (unsigned h = 0; h < 2; ++h) {
    const std::byte* const address = __shfl_sync(0xffffffffu, left, static_cast<int>(row + 8 * h));
    for (unsigned term = 0; term < kDepth; ++term)
      rows[h][term] = matrix_value<T>(address + term / kRow * 16, term % kRow);
  }
  for (unsigned at = 0; at < count; at += 4)
    for (unsigned i = 0; i < 2; ++i)
      for (unsigned term = 0; term < kDepth; ++term) {
        const unsigned column = at / 4 * kRow + pair + i, outer = right_transposed ? term : column,
                       inner = right_transposed ? column : term;
        const float factor = matrix_value<T>(right + outer * pitch + inner / kRow * 16, inner % kRow);
        for (unsigned h = 0; h < 2; ++h) sums[at + 2 * h + i] += rows[h][term] * factor;
      }
  __syncwarp();
}

}  // namespace emulated
