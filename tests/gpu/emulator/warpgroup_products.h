#pragma once

// Products as the PTX ISA describes them, for kernels/cuda/ops/product/warpgroup.h: from descriptors that say where the
// operands lie in shared memory, a thread's part at a time. Defined here, so that the accesses are reported (races.h).

#include "tests/gpu/emulator/device_language.h"

namespace emulated {

// A shared memory address as in PTX: an offset in shared_memory().
inline std::size_t shared_offset(const void* address) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(address) - shared_memory());
}

// A matrix in shared memory, in rows of 128 bytes that are swizzled.
template <class T>
class SharedMatrix {
 public:
  // `transposed`: neighbours in memory are neighbours in the result.
  SharedMatrix(std::uint64_t descriptor, bool transposed)
      : start_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4),
        transposed_(transposed) {
    constexpr std::uint64_t kSwizzled128 = 1;
    if (descriptor >> 62 != kSwizzled128) abort_emulation("a product's operand is not swizzled by 128 bytes");
    if ((descriptor >> 49 & 7) != 0) abort_emulation("a product's operand is not aligned to 1,024 bytes");
  }

  // `result`: the row of a left operand, the column of a right one. `term`: that is added up.
  float operator()(unsigned result, unsigned term) const {
    constexpr std::size_t kRowBytes = 128, kBlock = kRowBytes / sizeof(T);
    const std::size_t row = transposed_ ? term : result, column = transposed_ ? result : term;
    std::size_t at =
        start_ + row / 8 * stride_ + row % 8 * kRowBytes + column / kBlock * leading_ + column % kBlock * sizeof(T);
    at ^= at >> 3 & 0x70;  // the swizzle: bits 7 to 9 change bits 4 to 6
    if (at + sizeof(T) > kSharedBytes) abort_emulation("a product reads beyond shared memory");
    return static_cast<float>(*reinterpret_cast<const T*>(shared_memory() + at));
  }

 private:
  std::size_t start_, leading_, stride_;
  bool transposed_;
};

template <class T, bool right_transposed, unsigned count>
void multiply(float (&sums)[count], std::uint64_t left_descriptor, std::uint64_t right_descriptor) {
  constexpr unsigned kDepth = 16;
  const SharedMatrix<T> left(left_descriptor, false), right(right_descriptor, right_transposed);
  const unsigned first_row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
  float rows[2][kDepth];
  for (unsigned term = 0; term < kDepth; ++term)
    for (unsigned h = 0; h < 2; ++h) rows[h][term] = left(first_row + 8 * h, term);
  for (unsigned at = 0; at < count; at += 4)
    for (unsigned i = 0; i < 2; ++i)
      for (unsigned term = 0; term < kDepth; ++term) {
        const float factor = right(at / 4 * 8 + pair + i, term);
        for (unsigned h = 0; h < 2; ++h) sums[at + 2 * h + i] += rows[h][term] * factor;
      }
}

}  // namespace emulated

inline std::size_t __cvta_generic_to_shared(const void* address) {
  return emulated::shared_offset(address);
}
