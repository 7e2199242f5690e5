#pragma once

#include "kernels/cuda/ops/product/warpgroup.h"

#ifndef __CUDACC__
#include <warp_products.h>  // the emulator's
#endif

// Products in shared memory by warps (PTX ISA, "ldmatrix", "mma.sync"), for small matrices: rows may lie anywhere. A
// row's 16 terms, or a term's 8 results, are neighbours in memory, aligned to 16 bytes. No bank conflicts if 8 rows
// begin in different 16-byte places modulo 128.
namespace annulus::cuda {

constexpr unsigned kWarpRows = 16;  // in a product

// Multiplies 16 rows by 2 `count` columns in `right`, over kProductDepth terms, and adds to `sums`: the value in row
// l / 4 + 8 h and column 8 j + l % 4 * 2 + i is lane l's, at 4 j + 2 h + i. `left`: row l % 16, in lane l. `right`:
// with Neighbours::terms the first column, with Neighbours::results the first term; the next is `pitch` bytes further.
// To be called by whole warps.
template <class T, Neighbours right_neighbours, unsigned count>
__device__ void multiply(float (&sums)[count], const std::byte* left, const std::byte* right, unsigned pitch);

#ifdef __CUDACC__

// Four 8x8 matrices. Lanes 8 i to 8 i + 7 have the addresses of matrix i's rows.
template <bool transposed>
__device__ inline void load_matrices(std::uint32_t (&to)[4], const std::byte* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

#define ANNULUS_WARP_PRODUCT(type)                                 \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type       \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "        \
      "{%0, %1, %2, %3};"                                          \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) \
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]))

// Multiplies by 8 columns.
template <class T>
__device__ inline void multiply_matrices(float* sums, const std::uint32_t (&left)[4], const std::uint32_t* right) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    ANNULUS_WARP_PRODUCT("bf16");
  else
    ANNULUS_WARP_PRODUCT("f16");
}

#undef ANNULUS_WARP_PRODUCT

template <class T, Neighbours right_neighbours, unsigned count>
__device__ void multiply(float (&sums)[count], const std::byte* left, const std::byte* right, unsigned pitch) {
  constexpr bool kTransposed = right_neighbours == Neighbours::results;
  const unsigned lane = threadIdx.x % 32, in_matrix = lane % 8, matrix = lane / 8;
  std::uint32_t rows[4], columns[4];
  load_matrices<false>(rows, left + lane / 16 * 16);
  // Columns 0 to 7: terms 0 to 7 and 8 to 15; then columns 8 to 15.
  right += kTransposed ? (matrix % 2 * 8 + in_matrix) * pitch + matrix / 2 * 16
                       : (matrix / 2 * 8 + in_matrix) * pitch + matrix % 2 * 16;
#pragma unroll
  for (unsigned j = 0; j < count / 8; ++j) {
    load_matrices<kTransposed>(columns, right + j * (kTransposed ? 32 : 16 * pitch));
    multiply_matrices<T>(sums + 8 * j, rows, columns);
    multiply_matrices<T>(sums + 8 * j + 4, rows, columns + 2);
  }
}

#else

template <class T, Neighbours right_neighbours, unsigned count>
void multiply(float (&sums)[count], const std::byte* left, const std::byte* right, unsigned pitch) {
  emulated::multiply<T, right_neighbours == Neighbours::results>(sums, left, right, pitch);
}

#endif

}  // namespace annulus::cuda
